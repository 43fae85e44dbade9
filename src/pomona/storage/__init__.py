"""Files that survive kills: atomic writes, locks, checkpoints, tensors as a stream, arrays on disk."""
