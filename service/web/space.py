"""The searched space of a session, searched again for its picture: the report keeps the front alone."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import numpy as np

from service.report.view import View
from service.web.figures.space import Dot, Space
from tools.cost.memory import GIB
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan
from tools.sharding.ranked import Ranked
from tools.sharding.search import Search
from tools.sharding.space import decoded

SHOWN = 1200
FRONT = 200
MOST_KEPT = 32

Data = Mapping[str, Any]
Progress = Callable[[float], None]


class Searched:
    """The spaces that were drawn last: a page that is looked at again costs no search."""

    def __init__(self) -> None:
        self._lock, self._kept = Lock(), OrderedDict[str, tuple[list[Dot], list[Dot]]]()

    def find(self, key: str) -> tuple[list[Dot], list[Dot]] | None:
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: str, dots: tuple[list[Dot], list[Dot]]) -> None:
        with self._lock:
            self._kept[key] = dots
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)


def search_dots(workload: Workload, progress: Progress | None = None) -> tuple[list[Dot], list[Dot]]:
    """Plans that fit, the fastest first, and the front of time against memory."""
    found = Search(workload.scenario, workload.constraints, workload.calibration).run(progress)
    return _dots(found.best, SHOWN), _dots(found.front, FRONT)


def space_of(view: View, dots: tuple[list[Dot], list[Dot]]) -> Space:
    plans, front = dots
    return Space(
        plans=plans,
        front=front,
        proposals=[_planned(one.summary, one.prediction) for one in view.proposals],
        today=[
            _planned(f"{one.name}: {one.summary}", one.prediction) for one in view.plans if not one.proposal
        ],
        brought=_brought(view.report["considered"]),
        limit_gib=view.limit_gib,
    )


def _dots(ranked: Ranked, most: int) -> list[Dot]:
    """Every so many: of thousands a picture tells no more."""
    count = len(ranked.step_time_s)
    rows = np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()
    return [
        Dot(
            float(ranked.memory_bytes[row]) / GIB,
            float(ranked.step_time_s[row]),
            short(Plan.model_validate(decoded(ranked.plans, row))),
        )
        for row in rows
    ]


def _planned(says: str, prediction: Data) -> Dot:
    return Dot(prediction["peak_memory_gib"], prediction["step_time_s"], says)


def _brought(considered: Sequence[Data]) -> list[Dot]:
    """Those of them that could be predicted."""
    told = [(one, (one.get("proposal") or {}).get("prediction")) for one in considered]
    return [_planned(f"{one['origin']}: {one['summary']}", found) for one, found in told if found]
