"""The stores that `d7yfs publish` writes to: each is its origin with a PUT."""
