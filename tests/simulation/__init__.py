"""Deterministic simulation: the product under a virtual clock, scheduler, network, store and disk.
One seed is one run.
"""
