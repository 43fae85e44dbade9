"""The HTTP gate before Flower's SuperLink."""
