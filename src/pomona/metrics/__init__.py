"""Metrics on NumPy arrays: for one model on one client's samples, and over clients, rounds and
methods.

``measures``, ``overlap``, ``survival`` and ``outcomes`` evaluate a model; ``client_statistics``
combines such results.
"""
