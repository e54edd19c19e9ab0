"""The nightly run: newest profiles in, comparison with the nights before, re-optimization, one report out.

Reading order: `config` (nightly.yaml: workloads, policy, recipients), `ingest` (the newest profiles),
`review` (one workload's night, then the whole night), `reoptimize` (a faster plan, and the proposal kept
open), `report` (the pages), `deliver` (webhook, Slack, e-mail). In the service, `schedule` (cron, time zone,
blackouts), `dispatch` (which nights are due, each queued once) and `run_night` (a night in a worker) run all
of this by the clock; `fleet` is the table of all workloads, for the pages.

Not here: how regressions are found (tools/nightly), where nights are stored (service/db/schedules.py).
"""
