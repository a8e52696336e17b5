"""Many questions at once: every cell of a grid of them planned, then compared in days and money."""
