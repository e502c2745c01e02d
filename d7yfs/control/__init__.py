"""What a running mount answers on its control socket. Knows no FUSE binding."""
