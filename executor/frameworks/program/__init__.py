"""Configurations written in Python, followed by their syntax; no line of them is run."""
