"""What admins may do and see, over HTTP."""
