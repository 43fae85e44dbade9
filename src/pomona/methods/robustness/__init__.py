"""Server rules that bound the influence of wrong uplinks."""
