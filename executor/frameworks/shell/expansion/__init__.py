"""What a word of a script becomes: variables, arithmetic, patterns, splitting at blanks."""
