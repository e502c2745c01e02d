"""Fillers for the cache: which bytes to bring next, and by which way. Speaks no HTTP itself."""
