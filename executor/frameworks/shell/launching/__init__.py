"""Which commands of a followed script launch the training: their arguments, ranks and GPUs."""
