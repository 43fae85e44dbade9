"""Monitoring for operators: metrics, a page, the audit log's export. It only reads files and never affects a run."""
