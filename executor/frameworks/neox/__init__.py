"""GPT-NeoX's YAML, in."""
