"""A cluster's own truth: its runs update the cost model.

Reading order: `runs` (what comes in), `observations` (what it says), `update` (what is learned).
"""
