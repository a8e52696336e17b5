"""ms-swift: its scripts of `swift sft`, and its YAML."""
