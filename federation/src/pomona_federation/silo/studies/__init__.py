"""The studies a silo knows: consent by a person or by rule, and the agreed terms."""
