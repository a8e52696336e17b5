"""llm-foundry's YAML, in."""
