"""All ranks at a glance as a browser gets them: what fills each stretch, what waits, on one clock."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.trace.builders import MS, collective, rank_profile
from tools.trace import overview
from tools.trace.alignment import align
from tools.trace.breakdown import Timeline
from tools.trace.overview import clocks_ahead_ns, pack_overview
from tools.trace.rank_profile import RankProfile
from tools.trace.report import analyse_folder

TRACES = Path(__file__).resolve().parents[3] / "examples" / "traces" / "ddp-gloo-straggler"
STRETCHES = 4


def unpack(packed: bytes) -> tuple[dict[str, Any], np.ndarray, list[np.ndarray]]:
    """The header, bytes by rank, kind and stretch, and of each group starts, durations and waits."""
    (length,) = struct.unpack("<I", packed[:4])
    header, offset = json.loads(packed[4 : 4 + length]), 4 + length
    shape = (len(header["ranks"]), 4, header["stretches"])
    cells = np.frombuffer(packed, np.uint8, int(np.prod(shape)), offset).reshape(shape)
    offset, groups = offset + cells.size, []
    for group in header["groups"]:
        shape = (3, len(group["rows"]), group["count"])
        groups.append(np.frombuffer(packed, "<u4", int(np.prod(shape)), offset).reshape(shape))
        offset += groups[-1].nbytes
    assert offset == len(packed)
    return header, cells, groups


def rank(
    number: int, clock: int, *spans_ms: tuple[int, int], ranks: tuple[int, ...] | None = None
) -> RankProfile:
    """Eight milliseconds in which it does nothing but take part in collectives."""
    events = [collective((clock + start) * MS, (clock + end) * MS, ranks) for start, end in spans_ms]
    profile = rank_profile(number, collectives=events)
    busy = [
        1000 if any(start <= 2 * cell < end for start, end in spans_ms) else 0 for cell in range(STRETCHES)
    ]
    nothing = [0] * STRETCHES
    profile.timeline = Timeline(clock * MS, (clock + 8) * MS, nothing, busy, nothing)
    return profile


def test_what_a_rank_waits_is_told_from_what_it_transfers() -> None:
    early, late = rank(0, 0, (0, 6)), rank(1, 500, (4, 6))
    header, cells, ((starts, durations, waits),) = unpack(pack_overview([early, late], align([early, late])))
    transfer, waiting = cells[:, 1] // 255, cells[:, 2] // 255
    assert waiting.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert transfer.tolist() == [[0, 0, 1, 0], [0, 0, 1, 0]]
    assert [one["waiting"] for one in header["ranks"]] == [0.5, 0.0]
    assert [one["ahead_us"] for one in header["ranks"]] == [0.0, 500_000.0]
    assert (starts[:, 0].tolist(), waits[:, 0].tolist()) == ([0, 4 * MS], [4 * MS, 0])
    assert (durations[:, 0] - waits[:, 0]).tolist() == [2 * MS, 2 * MS]


def test_clocks_are_compared_from_group_to_group() -> None:
    """Ranks 0 and 2 share no collective, but both share one with rank 1."""
    spans, pairs = ((0, 2), (4, 6)), ((0, 1), (1, 2))
    profiles = [rank(number, 70 * number, ranks=None) for number in range(3)]
    for (first, second), span in zip(pairs, spans, strict=True):
        for number in (first, second):
            clock = 70 * number
            profiles[number].collectives.append(
                collective((clock + span[0]) * MS, (clock + span[1]) * MS, (first, second))
            )
    assert clocks_ahead_ns(align(profiles)) == {0: 0, 1: 70 * MS, 2: 140 * MS}


def test_of_too_many_collectives_those_that_waited_longest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview, "MAX_MEETINGS", 2)
    early, late = rank(0, 0, (0, 2), (2, 7)), rank(1, 0, (1, 2), (6, 7))
    header, _, ((starts, _, waits),) = unpack(pack_overview([early, late], align([early, late])))
    assert header["groups"][0]["count"] == 1
    assert (starts[:, 0].tolist(), waits[:, 0].tolist()) == ([2 * MS, 6 * MS], [4 * MS, 0])


def test_the_glance_waits_as_much_as_the_diagnosis_says() -> None:
    analysis = analyse_folder(TRACES, workers=1, limits=None)
    header, cells, _ = unpack(pack_overview(analysis.profile.ranks, align(analysis.profile.ranks)))
    assert cells.astype(int).sum(axis=1).max() <= 255
    spans = [one["span_us"] for one in header["ranks"]]
    waits = np.average([one["waiting"] for one in header["ranks"]], weights=spans)
    diagnosis = analysis.report.diagnosis
    assert diagnosis
    (told,) = [fact.value for fact in diagnosis.evidence if fact.ref == "collectives[].waiting_us"]
    assert waits == pytest.approx(told, abs=0.02)
