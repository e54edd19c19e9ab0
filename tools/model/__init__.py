"""What is learned about the cost model, and predictions with it.

Reading order: `constants`, `intervals` and `calibration` (what a fit learned), `predict`, `checks` (what must
hold of a prediction), `operations` and `schedule` (a prediction drawn); `runs`, `observations`, `cluster` and
`update` (what a cluster's own runs add).
"""
