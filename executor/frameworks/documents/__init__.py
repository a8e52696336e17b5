"""YAML, JSON and TOML as facts with their lines, and what refers to what in them."""
