"""The commands `execute` and `profile`."""
