"""Writing what mounts follow: only `d7yfs publish` imports it, and no daemon."""
