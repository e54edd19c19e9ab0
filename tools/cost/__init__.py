"""The cost model: how long a training step takes under a plan, and whether it fits.

Reading order: `encode` and `inputs` (what goes in, as arrays), `sizes` (parameters, layers of a stage),
`coefficients` (the fitted constants), `kernels` (time of one kernel), `layers` (what a transformer runs),
`collectives` (what a message costs), `traffic` (what each kind of parallelism sends), `stage` (one
micro-batch on one pipeline stage), `step` (all of it), `memory`, `evaluate` and `predict`.
Everything is arithmetic on broadcastable NumPy arrays: a single scenario is the array of length one.
"""
