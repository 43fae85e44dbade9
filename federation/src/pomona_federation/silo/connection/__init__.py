"""A silo's connection: its route to the server, the HTTP client, a watchdog, and its standing."""
