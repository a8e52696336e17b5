"""What runs a model of Hugging Face: Accelerate, DeepSpeed, transformers, its Trainer."""
