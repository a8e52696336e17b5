"""Vision and audio towers of multimodal models: their shapes, and their parameters."""
