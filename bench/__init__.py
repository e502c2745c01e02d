"""Side-by-side measurements against peers; see bench/README.md."""
