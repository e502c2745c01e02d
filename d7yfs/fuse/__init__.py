"""The adapters to the kernel; only they import a FUSE binding."""
