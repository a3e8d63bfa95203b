"""What adapters cost beside the same answers without one."""
