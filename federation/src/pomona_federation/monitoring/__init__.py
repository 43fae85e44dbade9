"""Metrics for operators. They are read from files alone, and never affect a run."""
