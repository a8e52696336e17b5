"""Models that no family describes, read off their own modules on the meta device."""
