"""A silo's disclosures, and the total privacy cost of all studies to its data."""
