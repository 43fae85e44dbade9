"""The commands for kits, servers, silos and studies, as thin, typed functions."""
