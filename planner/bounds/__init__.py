"""Lower bounds of the inner problem."""
