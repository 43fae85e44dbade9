"""Methods that exchange low-rank changes of a frozen network."""
