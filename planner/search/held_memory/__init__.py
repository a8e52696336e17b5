"""Plans that fit by what ranks hold, where the priced memory is only a bound of it."""
