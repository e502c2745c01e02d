"""The machine below the daemon: its mount table, handed-over mounts, and the daemon's starter."""
