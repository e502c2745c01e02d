"""d7yfs: mount model repositories from object stores as a local, cached, read-only directory tree."""

__version__ = "0.1.0"
