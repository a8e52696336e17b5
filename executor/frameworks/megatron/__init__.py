"""Megatron-LM: launch scripts out and in, and the settings that its kin share."""
