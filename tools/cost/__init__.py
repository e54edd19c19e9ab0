"""The cost model: how long a training step takes under a plan, and whether it fits.

Reading order: `terms` (what a prediction consists of), `encode` and `inputs` (inputs as arrays), `sizes`
(parameters, layers of a stage), `constants` (the fitted constants), `kernels` (time of one kernel), `layers`
(what a transformer runs), `collectives` (what a message costs), `traffic` (what each kind of parallelism
sends), `step` (stages and the step), `memory` and `predict`. `reference` is the same model once more in plain
Python, to check predictions with. Everything else is arithmetic on broadcastable NumPy arrays: a single
scenario is the array of length one.
"""
