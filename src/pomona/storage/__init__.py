"""Crash-safe files: atomic writes, locks, checkpoints, tensor streams, arrays on disk."""
