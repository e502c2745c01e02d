"""`make demo`: the main job of d7yfs on a real S3 server, with every byte checked."""
