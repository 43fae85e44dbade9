"""The server's side: SuperLink and its gate, the roster, the round loop over messages."""
