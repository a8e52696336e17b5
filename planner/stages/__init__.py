"""Plans of the inner problem: first ones, and by CP-SAT of any cut."""
