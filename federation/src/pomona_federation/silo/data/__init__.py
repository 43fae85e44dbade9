"""A silo's data: read, kept in memory, brought into the agreed form."""
