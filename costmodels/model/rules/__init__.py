"""What families change of the model that their fields describe, by functions of both."""
