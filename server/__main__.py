"""`python -m server` is the `parley` command."""

from server.cli import main

main()
