"""Lower bounds of V shapes, whose ranks hold a chunk from each end of the model."""
