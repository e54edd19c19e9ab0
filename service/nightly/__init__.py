"""The nightly run: newest profiles in, comparison with the nights before, re-optimization, one report out.

Reading order: `config` (nightly.yaml: workloads, policy, recipients), `review` (one workload's night from its
newest profile on, then the whole night), `reoptimize` (a faster plan, and the proposal kept open), `report`
(the pages, and their delivery by webhook, Slack and e-mail). In the service, `schedule` (cron, time zone,
blackouts), `dispatch` (which nights are due, each queued once) and `run_night` (a night in a worker) run all
of this by the clock; `schedules` holds the use cases that the API and the pages call.

Not here: how regressions are found (tools/nightly), where nights are stored (service/db/schedules.py).
"""
