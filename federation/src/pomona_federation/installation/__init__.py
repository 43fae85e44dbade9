"""A kit after provisioning: its contents, backup, restore and uninstall."""
