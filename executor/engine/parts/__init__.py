"""What layers are built from: groups of ranks, weights in flat buffers, differentiable pieces."""
