"""torchtitan: TOML of 0.2 and Python functions of 0.3, out and in."""
