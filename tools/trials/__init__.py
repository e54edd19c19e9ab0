"""Trials: measure plans as short jobs on the cluster, compare them fairly, learn from them, stop in time.

Reading order: `order` (what a trial is to do), `run` (a job made, waited for, read and repeated), `measure`
(what it says), `gate` (which two may be compared), `gain` (which plan to measure next, under the model that
all trials calibrate, and when to stop) and `steering` (the first plan, and what failures rule out).
"""
