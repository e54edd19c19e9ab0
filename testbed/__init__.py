"""The reference trainer and the dry run: a small Llama- or MoE-style model that runs any plan it accepts.

    torchrun --nproc-per-node 4 -m testbed.trainer scenario.json --steps 10 --warmup 2 --out DIR

Every plan's losses equal those of one rank; a plan that cannot promise that is refused. The dry run plays one
rank of up to 1,024 without memory, devices or other ranks (FakeTensorMode, a process group that sends
nothing) and counts FLOPs, bytes of every collective and live memory. Modules that need torch import it at
the top.
"""
