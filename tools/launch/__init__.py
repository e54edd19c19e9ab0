"""Launchers: run a registered template as a job on this machine, on Slurm or on Kubernetes, exactly once.

Reading order: `template` (what an administrator allows), `folder` (what is recorded of a job), `launcher`
(what a request may ask for, and what all engines share), then `local` with `supervisor`, `slurm`,
`kubernetes`; `engines` opens them, `failures` classifies why a job failed. Nothing is imported here: a job's
supervisor must start fast.
"""
