"""The dry run of a mount and its findings. Changes nothing."""
