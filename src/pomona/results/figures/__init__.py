"""One module per type of figure; every figure is saved as PNG, SVG and PDF, with its numbers as
CSV.
"""
