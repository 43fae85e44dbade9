"""The record of a run: events as they happen, results read back, views, and personal model files."""
