"""Other simulators on one task; ``named_peers.py`` measures them and Pomona."""
