"""This machine: its speed, processes, environments, and the terminal."""
