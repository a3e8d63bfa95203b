"""Beside the store: users, credentials, replicas, and what admins see."""
