"""What a run reveals about its records, measured by attacks on what each party receives."""

RUNS = 32
"""Runs to attack if their number is not set."""
