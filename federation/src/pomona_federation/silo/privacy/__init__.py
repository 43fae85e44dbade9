"""What leaves a silo, and the total privacy cost of all studies to its data."""
