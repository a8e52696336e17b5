"""verl's SFT trainer, to read; the fields of a plan in what of verl is not read."""
