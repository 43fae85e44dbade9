"""A silo's answers to tasks: policy, provenance of rows, rounds on disk."""
