"""A method for Pomona; it stands in ``my_method.method``."""
