"""A config or a plan as a layout that can be priced."""
