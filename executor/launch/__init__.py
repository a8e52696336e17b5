"""Starting, watching and reporting a run of a plan."""
