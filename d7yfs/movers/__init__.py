"""Processes that bring bodies of replies into the cache, each on a core of its own."""
