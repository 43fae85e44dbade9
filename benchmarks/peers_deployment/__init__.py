"""Federations of others to measure beside; ``deployment_peers.py`` runs them."""
