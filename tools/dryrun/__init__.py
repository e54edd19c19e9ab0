"""The dry run: the reference trainer's program for a plan, run without memory, devices or other ranks.

One process plays a rank of up to 1,024 with tensors that have shapes only (FakeTensorMode) and a process
group that sends nothing. What it counts is what the program does: FLOPs, bytes of every collective, memory
that is alive. `asap dry-run` sets it beside the cost model, which the tests hold to it.

Reading order: `watching` with `flops`, `traffic` and `memory` (what is counted), `rank` (one rank's step),
`probes` (few layers and micro-batches for many), `expected` (the cost model's figures) and `report`. All but
`figures` and `expected` need torch.
"""
