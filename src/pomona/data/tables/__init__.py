"""The road of a table: text columns, roles (label, client, group, time, subgroup), then features.

``source`` opens files and frames, ``roles`` says what their columns are for, ``survey`` reads the
columns with a purpose, ``cells`` the features as numbers with ``strays`` for what is not one,
``features`` learns and applies their preprocessing, and ``tabular`` joins it all to a ``Dataset``.
"""
