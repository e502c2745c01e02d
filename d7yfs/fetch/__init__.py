"""Data plane: GETs of byte ranges from origins and through dfdaemon, verified and retried; fillers for the cache."""
