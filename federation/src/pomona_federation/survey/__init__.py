"""Federated statistics: what silos tell of their data, what is made of it, and the task of the next study.

A silo makes each column safe once (``least_count``) and answers from that alone; everything the server shows is
computed from such answers. This folder knows statistics, no messages.
"""
