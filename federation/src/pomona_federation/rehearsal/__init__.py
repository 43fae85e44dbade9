"""A federation on this machine, with real processes, compared with the simulation of the same
files.
"""
