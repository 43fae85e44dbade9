"""A kit after provisioning: its contents, backup, restore, and renewal of its key."""
