"""The members of a federation, their keys, and their admission."""
