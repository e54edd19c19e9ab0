"""Clusters: their own measured runs, what was learned from them, and how accurate predictions are there."""
