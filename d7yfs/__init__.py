"""d7yfs: mount model repositories from object stores as a local, cached, read-only directory tree."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("d7yfs")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
