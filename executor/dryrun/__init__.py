"""What watches the engine while it runs on fake tensors: memory and work."""
