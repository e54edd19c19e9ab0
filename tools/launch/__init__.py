"""Launchers: run a registered template as a job on this machine, on Slurm or on Kubernetes, exactly once.

Reading order: `launcher` (the interface), `template` and `template_file` (what an administrator allows),
`job` and `command` (what a request may say), `folder` and `preparing` (the recorded intent), then `local`
with `supervisor`, `slurm`, `kubernetes_launcher`; `classify` says why a job failed. What a trial measures is
not decided here. Nothing is imported on this level: the supervisor of a local job must start fast and light.
"""
