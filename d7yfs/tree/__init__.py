"""Names: which exist, since when that is known, and which question to the store comes next."""
