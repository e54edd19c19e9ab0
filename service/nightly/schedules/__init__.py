"""Nightly runs by the clock: cron expressions, what may keep a night from running, and each night once.

Reading order: `cron`, `spec` (what may be asked for), `planning` (which nights are due, pure), `ticking`
(books them), `queue`, `running` (does one), `sessions` (re-optimizes through the service's queue), `worker`
(joins all of it to the worker's process).

DBOS has a cron of its own. Ours is used because DBOS's has no memory of what it skipped: it cannot catch up a
missed night once, or leave out a blackout or an overlap and say so; and on the day clocks go back it fires a
nightly time twice. Queue and recovery are DBOS's.
"""
