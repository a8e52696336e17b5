"""Measured runs: reading, predicting, learning from them."""
