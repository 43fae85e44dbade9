"""What operators look at: metrics, a page, the audit log's export. It reads files alone, and disturbs no run."""
