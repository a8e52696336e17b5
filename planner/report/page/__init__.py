"""The explanation of a plan as one self-contained page."""
