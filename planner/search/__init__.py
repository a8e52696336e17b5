"""Branch and bound over all layouts."""
