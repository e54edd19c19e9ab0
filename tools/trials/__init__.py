"""Trials: measure plans as short jobs on the cluster, compare them fairly, learn from them, stop in time.

Reading order: `order` (what is asked for), `first_plan` (what comes first), `runner` with `trial_job` and
`run` (a job made, waited for, read and repeated), `measurement` (what it says), `gate` (which two may be
compared), `calibrate` (what measured plans say about the cost model), `steering` and `stopping` (what next).
"""
