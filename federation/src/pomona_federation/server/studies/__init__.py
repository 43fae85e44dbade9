"""Studies at the server: queue, consents, searches, evaluations and their pages."""
