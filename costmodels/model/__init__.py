"""Shapes of transformers, configurations of model families, and their parameters."""
