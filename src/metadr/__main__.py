"""`python -m metadr`: the command line."""

from metadr.cli import main

main()
