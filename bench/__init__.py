"""What the numbers in the README come from. `make bench`, or `python -m bench --help`."""
