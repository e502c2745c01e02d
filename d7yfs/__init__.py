"""d7yfs: mount model repositories from object stores as a local, cached, read-only directory tree."""


def __getattr__(name: str) -> str:
    """`__version__`, found when it is asked for: the supervisor is small without."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("d7yfs")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
