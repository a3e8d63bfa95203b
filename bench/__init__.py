"""What the numbers in the README come from. `make bench`, `python -m bench.loop_lag`."""
