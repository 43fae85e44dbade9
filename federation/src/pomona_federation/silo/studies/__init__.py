"""The studies a silo knows: consent by a person or by rule, and what it agreed to."""
