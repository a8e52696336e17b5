"""Findings about configs, and what would mend them."""
