"""What a user's own runs teach: constants, and reasons for what a run lacks."""
