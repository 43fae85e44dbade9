"""The round loop, written once: plan, exchange, aggregate, commit; and what runs on a client's side of it."""
