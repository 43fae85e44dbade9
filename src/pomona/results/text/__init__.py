"""Sentences about results, generated from the numbers."""
