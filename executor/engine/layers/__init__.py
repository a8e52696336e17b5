"""The layers themselves, each for a rank's share of it."""
