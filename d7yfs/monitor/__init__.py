"""How a mount tells others how it is. Counts nothing itself."""
