"""Differential privacy of records, one account a client: settings, mechanism, ledger, accountant, what is left out.

The neighbours of a client's data set are those in which one record contributes nothing. The number of samples n and
the batch size B are public.
"""
