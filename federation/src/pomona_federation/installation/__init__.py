"""The life of a kit after it was made: what lies in it, backup, restore, uninstall."""
