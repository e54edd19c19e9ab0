"""Launch scripts are read as bash would run them, without running anything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.frameworks import ImportOptions, import_plan
from tools.frameworks.shell import parse_arguments, parse_layer_list, substitute

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


def test_a_variable_that_nobody_sets_is_asked_for() -> None:
    text = "--tensor-model-parallel-size $WIDTH --micro-batch-size 1 --seq-length 4096"
    options = ImportOptions(device="h100", num_devices=8)
    with pytest.raises(InputError, match="--set WIDTH=VALUE"):
        import_plan(text, "megatron", options)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 9)), min_size=1, max_size=6))
def test_a_list_of_layers_is_what_python_makes_of_it(groups: list[tuple[int, int]]) -> None:
    text = "+".join(f"[{flag}]*{times}" for flag, times in groups)
    assert parse_layer_list(f"({text})") == eval(text)


@given(st.integers(1, 10**6), st.integers(1, 10**4), st.integers(1, 10**4))
def test_arithmetic_follows_precedence(a: int, b: int, c: int) -> None:
    assert substitute(f"$(($A + {b}*{c} - {c}))", {"A": str(a)}) == str(a + b * c - c)
    assert substitute(f"$(({a}/{b}))", {}) == str(a // b)


@given(st.text(st.sampled_from("$(){}[]:-+*/=\"' \nabAB10if;fcase"), max_size=80))
def test_no_script_does_worse_than_giving_options(text: str) -> None:
    assert isinstance(parse_arguments(text), dict)
