"""One repository, put together from its store, its ways to the bytes and its prefix."""
