"""The legal layouts of a question."""
