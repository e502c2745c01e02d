"""Model servers that read from a mount: pure decisions about each, and a thin client."""
