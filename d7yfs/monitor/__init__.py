"""The account of a mount, for people, probes and Prometheus. Counts nothing itself."""
