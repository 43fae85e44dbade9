"""A silo's answers to tasks: policy, row provenance, rounds on disk."""
