"""Launch scripts, followed as bash follows them; nothing is run."""
