"""Constants fitted to a user's own runs, and hypotheses why a run is slower than predicted."""
