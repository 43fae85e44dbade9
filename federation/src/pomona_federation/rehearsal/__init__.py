"""A federation on this machine, with real processes, against the simulation of the same files."""
