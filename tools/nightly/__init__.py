"""Nights of a workload: what each measured, what changed against the nights before, why, and what it costs.

Reading order: `night` (one record), `read` (a record from a profile or a metrics file), `noise` and `steps`
(has a figure changed its level?), `findings` (which figures are watched, and what is reported), `attribution`
(which part grew, what else changed that night, which runs would decide), `review` (all of it for one
workload), `result` (what is stored and shown). `research/nights.py` makes histories with known regressions
and scores the review on them.

Not here: where nights are stored, when they are read and who gets the report (service/nightly).
"""
