"""Federations between organisations, on Flower: the agreement, kits for silos and server, and the
processes in them.

Flower is imported only by the modules that talk to it, and as late as possible.
"""
