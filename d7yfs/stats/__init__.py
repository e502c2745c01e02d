"""Plain counters and histograms. No I/O."""
