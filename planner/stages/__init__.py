"""Solvers of the inner problem."""
