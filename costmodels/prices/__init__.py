"""Many layouts at once, as columns: what layers and ends of each cost and keep."""
