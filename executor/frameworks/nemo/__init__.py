"""Megatron-Bridge's overrides and NeMo's YAML."""
