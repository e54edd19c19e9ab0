"""The nightly run: newest profiles in, comparison with the nights before, re-optimization, one report out.

Reading order: `config` (nightly.yaml: workloads, policy, recipients), `sources` (their newest profiles),
`review` (one workload's night, then the whole night), `reoptimize` (a faster plan, and the proposal kept
open), `report` (the pages) and `deliver` (webhook, Slack, e-mail). In the service, `calendar` (cron, time
zone, blackouts), `dispatch` (which nights are due, each queued once) and `night` (a night in a worker) run
all of this by the clock; `model`, `store`, `usecases`, `api` and `pages` are as in every feature.

Not here: how regressions are found (tools/nightly).
"""
