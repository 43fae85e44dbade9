"""Text on results, generated from the numbers."""
