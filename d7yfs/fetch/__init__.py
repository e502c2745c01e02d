"""One range by HTTP: GETs of ranges from origins and through dfdaemon, verified and retried."""
