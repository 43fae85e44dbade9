"""Figures on NumPy arrays: of one model on one client's samples, and over clients, rounds and methods.

``classification`` and ``regression`` evaluate a model; ``summary`` puts such results together.
"""
