"""Federations between organisations, on Flower: what is agreed, kits for silos and server, and what runs in them.

Flower itself is imported only by what talks to it, and there as late as possible.
"""
