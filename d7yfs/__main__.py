"""`python -m d7yfs`."""

from d7yfs.cli import main

main()
