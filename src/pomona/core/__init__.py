"""Used by every part: errors, bounded types, random streams, rosters and rounds, states as named tensors."""
