"""Formulas of the cost model: how long a training step takes under a plan, and whether it fits.

Nothing is learned here. Read `terms` (what a prediction consists of), `inputs` and `encode` (a scenario
as arrays), `mixers` and `sizes` (parameters), `kernels` (one kernel), `layers` (what a transformer runs),
`collectives` (what a message costs), `traffic` (what each kind of parallelism sends), `stage` and `step`,
`memory`. All is arithmetic on broadcastable NumPy arrays: a single scenario is the array of length one.
"""
