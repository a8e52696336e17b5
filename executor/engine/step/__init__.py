"""One rank's step: its data, its stages, its schedule, the optimizer, and what cannot run."""
