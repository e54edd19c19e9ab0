"""The reference trainer: a small Llama- or MoE-style model that runs any plan it accepts, in plain PyTorch.

    torchrun --nproc-per-node 4 -m tools.trainer scenario.json --steps 10 --warmup 2 --out DIR

Reading order: `refusals` (which scenarios it runs), `layout` (who talks to whom), `exchange` (collectives
with gradients), `model`, `attention`, `feed_forward`, `experts` and `loss` (the network), `weights` (what
it starts from), `tensor_parallel`, `data_parallel` and `pipeline` (the plan), `program` (a rank's step),
`run` and `record`. Every plan's losses equal those of one rank; a plan that cannot promise it is refused.
Modules that need torch import it at the top: import them where they are used.
"""
