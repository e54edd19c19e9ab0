"""The cost model: how long a training step takes under a plan, and whether it fits.

Reading order: `inputs` (what goes in, as arrays), `coefficients` (the fitted constants), `kernels` (time of
one kernel), `layers` (what a transformer runs), `placement` and `collectives` (what a message costs),
`traffic` (what each kind of parallelism sends), `pipeline`, `memory`, and `step`, which adds it all up.
Everything is arithmetic on broadcastable NumPy arrays: a single scenario is the array of length one.
"""
