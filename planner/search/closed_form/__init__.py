"""Branch and bound under the closed form, and its first plans."""
