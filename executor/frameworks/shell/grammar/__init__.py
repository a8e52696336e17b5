"""A shell script's text as words, and words as a tree: no variable is known yet."""
