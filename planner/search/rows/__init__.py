"""The rows of a space: their prices and bounds, which of them another row dominates."""
