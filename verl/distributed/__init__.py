"""What needs more than one process."""
