"""What a silo's administrator asks for: checks, a report, a new key."""
