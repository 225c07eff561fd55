"""The relay: from the journal to every tracker, each record in the end exactly once."""
