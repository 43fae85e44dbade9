"""What a run reveals about its records, measured by attacks on what each party receives."""
