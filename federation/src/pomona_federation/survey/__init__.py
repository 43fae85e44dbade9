"""Federated statistics: the silos' disclosures, the results computed from them, and the task of the
next study.

A silo makes each column safe once (``least_count``) and answers from that alone; everything the
server shows is computed from such answers. This package contains statistics, not messages.
"""
