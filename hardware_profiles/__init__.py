"""Data with a source per number: GPUs, clusters, engines, models, and what was measured on them."""
