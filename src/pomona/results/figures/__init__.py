"""One module for each kind of figure; every figure is saved as PNG, SVG and PDF, with its numbers beside it."""
