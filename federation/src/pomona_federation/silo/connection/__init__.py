"""A silo's connection: its way out, the HTTP client, whether it works, how it stands with the server."""
