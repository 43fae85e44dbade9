"""Requests of a silo's administrator: checks, a report."""
