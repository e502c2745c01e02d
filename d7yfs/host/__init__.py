"""The machine below the daemon: its mount table, handed-over mounts, and the process that started the daemon."""
