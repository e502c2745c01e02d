"""One frozen configuration from flags, environment, TOML and Triton's files, with its sources."""
