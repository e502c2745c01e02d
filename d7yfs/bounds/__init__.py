"""Bounds on input from the network: numbers, times, texts, JSON, and the pages of a listing. Pure."""
