"""Foundations that every package uses: errors, bounded types, random streams, rosters and rounds,
named tensors.
"""
