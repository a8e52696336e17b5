"""Measures the machine it runs on and writes what it found as a cluster profile."""
