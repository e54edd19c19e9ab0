"""Events are the same whether their category's struct fits at once or they are decoded field by field."""

import json
from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tools.trace import events as module
from tools.trace.events import Event, EventDecoder, Span

USUAL = st.integers(0, 99)
ODD = st.none() | st.text(max_size=3) | st.floats(allow_nan=False, allow_infinity=False) | st.lists(USUAL)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "stream": USUAL | ODD,
        "correlation": USUAL | ODD,
        "Collective name": st.just("allreduce"),
        "In msg nelems": USUAL | ODD,
        "Total Allocated": USUAL,
        "Input Dims": st.just([[4, 4]]),
    },
)
CATEGORIES = ["kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "cpu_instant_event", "ac2g", "of my own"]
EVENTS = st.lists(
    st.fixed_dictionaries(
        {"ph": st.just("X"), "ts": USUAL, "dur": USUAL},
        optional={
            "cat": st.sampled_from(CATEGORIES),
            "name": st.text(max_size=5),
            "tid": USUAL | st.text(max_size=2),
            "args": ARGUMENTS | st.none(),
        },
    ),
    max_size=8,
)


def _used(events: Sequence[Event]) -> list[bytes]:
    """By category, since the order of categories does not matter; the encoding names it too."""
    used = [event for event in events if isinstance(event, Span)]
    return [msgspec.json.encode(event) for event in sorted(used, key=lambda event: event.category)]


@given(EVENTS, EVENTS)
def test_one_pass_and_field_by_field_agree(first: list[object], second: list[object]) -> None:
    fast, slow = EventDecoder(), EventDecoder()
    slow._misses = module._MAX_MISSES + 1
    for batch in (first, second):
        text = json.dumps(batch).encode()
        assert _used(fast.decode(text)) == _used(slow.decode(text))
