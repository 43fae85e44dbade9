"""A method for Pomona, defined in ``my_method.method``."""
