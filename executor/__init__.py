"""Touches hardware: measurements, training engine, dry run, launchers, framework configs."""
