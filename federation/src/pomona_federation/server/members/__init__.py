"""The members of a federation, their keys, and how they are admitted."""
