"""Other federations for comparison, run by ``deployment_peers.py``."""
