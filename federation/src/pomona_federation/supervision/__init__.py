"""Supervised processes, their logs and status files."""
