"""The question of a plan asked again with a figure changed: which of them moves the step most."""
