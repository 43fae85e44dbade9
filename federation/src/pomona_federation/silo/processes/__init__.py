"""The processes of a silo."""
