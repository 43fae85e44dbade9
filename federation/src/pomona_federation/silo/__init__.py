"""A silo's side: its settings and data, its connection, and its tasks."""
