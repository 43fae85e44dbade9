"""Tables of results, in four formats: HTML, Markdown, CSV and LaTeX."""
