"""Crash-safe storage: locks, checkpoints, tensor streams, arrays on disk."""
