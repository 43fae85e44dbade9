"""What every organisation gets to take part: settings, keys, certificates and start commands in one folder."""
