"""Time and memory of one training step, of one layout or of many."""
