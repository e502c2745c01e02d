"""Adapters to the kernel. Nothing else imports a FUSE binding."""
