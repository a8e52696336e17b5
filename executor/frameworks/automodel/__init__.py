"""NeMo AutoModel's YAML, in."""
