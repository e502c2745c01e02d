"""Rollouts to clusters that are larger than any machine here: `python -m bench.rollout`."""
