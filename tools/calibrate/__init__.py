"""A cluster's own truth: its runs update the cost model. Reading order: `runs`, `update`."""
