"""nanotron's YAML, out and in."""
