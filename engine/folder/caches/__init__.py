"""What other programs have downloaded on this machine: found, described, and served by name."""
