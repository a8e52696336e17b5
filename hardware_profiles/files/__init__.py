"""Files: read within bounds, written whole, profiles of TOML and their names."""
