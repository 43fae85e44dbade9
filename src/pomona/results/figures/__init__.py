"""One module for each kind of figure; every figure is a PNG and an SVG with its numbers beside it."""
