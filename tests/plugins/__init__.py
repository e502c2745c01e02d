"""pytest plugins of this suite, loaded by name with `-p`."""
