"""Processes that are kept alive, their logs and status files."""
