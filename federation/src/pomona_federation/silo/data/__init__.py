"""A silo's data: read and brought into the agreed form; what leaves of them, and what studies may cost them."""
