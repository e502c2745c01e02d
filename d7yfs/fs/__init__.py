"""Lookup, open, read and readdir in plain values. Does no I/O of its own."""
