"""The control socket of a running mount, and the commands that it answers. Knows no FUSE."""
