"""What every part uses: errors, types with bounds, randomness, rosters and rounds, states as named tensors."""
