"""Notices to people by webhook and mail, made of the audit log."""
