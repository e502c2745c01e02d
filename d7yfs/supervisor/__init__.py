"""The process that owns a mount, so that the process which serves it may die."""
