"""Seconds of kernels, of collectives and of one layer."""
