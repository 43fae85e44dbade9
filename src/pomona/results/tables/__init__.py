"""Tables of results, in four forms: HTML, Markdown, CSV and LaTeX."""
