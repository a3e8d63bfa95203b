"""Tools that the server runs: which there are, and whether a call of one may run."""
