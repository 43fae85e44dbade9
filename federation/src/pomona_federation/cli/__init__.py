"""The commands on kits, servers, silos and studies: thin, typed functions."""
