"""A silo's side: its settings, its connection, its data, and its tasks."""
