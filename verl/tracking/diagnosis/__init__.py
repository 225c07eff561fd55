"""What keeps trackers from working, what they lack of a run, and which to take."""
