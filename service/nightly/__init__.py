"""The nightly run: newest profiles in, comparison with the nights before, re-optimization, one report out.

Reading order: `definition` (what may be asked for), `config` (nightly.yaml), `sources` (newest profiles),
`workload` (one workload's night), `proposals` and `reoptimize` (a faster plan), `night` (all of them),
`report/` (the pages), `deliver/` (webhook, Slack, e-mail). `schedules/` runs all of this by the clock in the
service; `fleet` is for the pages.

Not here: how regressions are found (tools/nightly), where things are kept (service/store).
"""
