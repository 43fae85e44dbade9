"""Record-level differential privacy: settings, mechanism, ledger, accountant, uncovered releases.

The neighbours of a client's data set are those in which one record contributes nothing. The number
of samples n and the batch size B are public.
"""
