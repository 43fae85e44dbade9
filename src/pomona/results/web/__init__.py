"""The pages: HTML from templates, scripts and the records' numbers."""
