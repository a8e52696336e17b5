"""Hardware profiles: reports, comparison, import."""
