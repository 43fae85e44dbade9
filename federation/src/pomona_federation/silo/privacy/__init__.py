"""What leaves a silo, and what all studies together may cost its data."""
