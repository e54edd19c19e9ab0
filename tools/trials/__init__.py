"""Trials: measure plans as short jobs on the cluster, compare them fairly, learn from them, stop in time.

Reading order: `measurement` (what a finished job says), `gate` (which two may be compared), `runner` (a job
made, waited for, read and repeated), `calibrate` (what measured plans say about the cost model), `stopping`.
"""
