"""Provisioning: one folder (kit) for each organisation, with settings, keys, certificates and start
commands.
"""
