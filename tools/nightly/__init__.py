"""Nights of a workload: what each measured, what changed against the nights before, why, and what it costs.

Reading order: `night` (one record), `figures` (what is watched), `noise` and `steps` (has a figure changed
its level?), `findings` (what is said about it on a given night), `attribution` (which part grew, what else
changed that night), `worth` (device-hours), `review` (all of it for one workload). `profile_night` and
`metrics_night` make records, `surroundings` reads what the job says of itself. `synthetic` makes histories
with known regressions, and `score` counts what is found in them.

Not here: where nights are kept, when they are taken and who is told.
"""
