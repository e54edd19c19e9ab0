"""Launchers: run a registered template as a job on this machine, on Slurm or on Kubernetes, exactly once.

Reading order: `template` (what an administrator allows), `launcher` (what a request may ask for, and the
interface), `folder` (the recorded intent), then `local` with `supervisor`, `slurm`, `kubernetes`;
`failures` classifies why a job failed. Nothing is imported here: a job's supervisor must start fast.
"""
