"""A cluster's own truth: its runs update the cost model.

Reading order: `runs` and `logs` (what comes in), `observations`, `update`, `memory` (what is learned).
"""
