"""One repository, put together from its store, its ways to the bytes and the prefix where it lies. Knows no kernel."""
