"""What is sent and kept of weights and gradients: everything of ZeRO."""
