"""One validated, frozen configuration from flags, environment, TOML and Triton's files, and where each setting came from."""
