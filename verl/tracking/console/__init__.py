"""What is drawn on the user's own screen."""
