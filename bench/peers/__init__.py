"""`make bench-peers`: Parley beside the engines that one could pick in its place, on this CPU."""
