"""Attention: its core, and what brings queries and keys together."""
