"""Closed lists of frameworks' flags and keys, and what a name that nobody read matters."""
