"""Launch scripts are read as bash would run them, without running anything."""

from tools.frameworks.shell import parse_arguments

SCRIPT = """#!/bin/bash
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"2"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=${TP:-4}
DTYPE="fp8"
case "${SCALE}" in
    "small")
        LAYERS=12
        ;;
    *)
        LAYERS=32
        ;;
esac
ARGS=(
    --num-layers $LAYERS  # layers
    --tensor-model-parallel-size ${TP}
    --world $WORLD_SIZE
)
if [[ "$DTYPE" == "fp8" ]]; then
    ARGS+=("--fp8-format hybrid")
elif [ -n "$NEVER" ]; then
    ARGS+=("--fp16")
else
    ARGS+=("--bf16")
fi
torchrun pretrain_gpt.py ${ARGS[@]}
"""


def test_variables_arithmetic_cases_and_conditions_are_resolved() -> None:
    assert parse_arguments(SCRIPT) == {
        "num_layers": "32",
        "tensor_model_parallel_size": "4",
        "world": "16",
        "fp8_format": "hybrid",
    }


def test_the_users_variables_win() -> None:
    options = parse_arguments(SCRIPT, {"TP": "8", "SCALE": "small", "DTYPE": "bf16"})
    assert (options["tensor_model_parallel_size"], options["num_layers"]) == ("8", "12")
    assert "bf16" in options
    assert "fp8_format" not in options
