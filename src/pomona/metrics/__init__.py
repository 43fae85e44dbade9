"""Figures on NumPy arrays: of one model on one client's samples, and over clients, rounds and methods.

``classification``, ``regression``, ``overlap`` and ``survival`` evaluate a model; ``client_statistics`` puts such
results together.
"""
