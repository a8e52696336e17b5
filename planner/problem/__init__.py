"""The inner problem of one layout: layers to stages, and what they recompute, in integers."""
