"""Bytes that a rank keeps: states, kept buffers, the peak inside a backward pass."""
