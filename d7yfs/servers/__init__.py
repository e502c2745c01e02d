"""Model servers that read from a mount, as far as d7yfs talks to them: each one's pure decisions, and the thin client beside them."""
