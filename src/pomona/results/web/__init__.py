"""HTML pages from templates, scripts and the records' numbers."""
