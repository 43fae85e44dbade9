"""The round loop (plan, exchange, aggregate, commit), and the client's side of a round."""
