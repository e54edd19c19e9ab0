"""What to do about a regression: where to look first, by what changed with it and by what grew."""

from collections import defaultdict
from collections.abc import Sequence

from tools.nightly.attribution import Attribution, SurroundingChange
from tools.nightly.figures import MEMORY, SPREAD
from tools.nightly.findings import Finding
from tools.nightly.night import SlowRank
from tools.nightly.review import Review

MOST_NAMES = 5
LOOK_AT = {
    "compute": "the kernels: compare a profile of before and one of now with `asap diagnose --compare`",
    "memory_bound_ops": "element-wise kernels: a fusion may have been lost (compilation, a new mask)",
    "tp_comm_exposed": "tensor-parallel collectives: links inside the node, and what they overlap with",
    "cp_comm_exposed": "context-parallel exchange: sequence lengths, and links inside the node",
    "ep_comm_exposed": "the experts' all-to-all: balance of the router, and links between nodes",
    "dp_comm_exposed": "gradient and parameter exchange: links between nodes, bucket sizes, overlap",
    "other_comm_exposed": "collectives that belong to no axis of the plan: logging or checks in the step",
    "pipeline": "the pipeline: balance of its stages, and the number of micro-batches",
    "optimizer": "the optimizer: fused kernels, and where its state lies",
    "host_and_other": "the host: data loading, synchronisation, and ranks that come late",
    "idle": "the host: data loading and synchronisation",
    "exposed_communication": "collectives: links, and what they used to overlap with",
}


def advise(found: Review) -> list[str]:
    """Most telling first; empty where nothing is wrong."""
    bad = [one for one in found.findings if one.is_bad]
    if not bad or found.attribution is None:
        return []
    why = found.attribution
    says = [*_by_changes(why.changes), *_by_ranks(why.slow_ranks)]
    if found.headline in bad:
        says += _by_terms(why)
    says += [text for one in bad for text in _by_figure(one)]
    if not why.changes and why.unknown:
        names = " and ".join(why.unknown)
        says.append(f"record {names} of every night (job.yaml), so that the next change can be explained")
    return says


def _by_changes(changes: Sequence[SurroundingChange]) -> list[str]:
    """Those of the same night by kind; those nearby only where there are none."""
    same = [one for one in changes if one.offset == 0]
    grouped: dict[str, list[SurroundingChange]] = defaultdict(list)
    for one in same or changes:
        grouped[one.kind].append(one)
    when = "the same night" if same else "about that night"
    return [_BY_KIND[kind](_names(some), when) for kind, some in grouped.items()]


_BY_KIND = {
    "software": lambda names, when: f"run once with the software of before: {names}, changed {when}",
    "plan": lambda names, when: f"the plan changed {when} ({names}): compare both plans by `asap explain`",
    "nodes": lambda names, when: f"check the nodes that changed {when}: {names}",
    "data": lambda names, when: f"the data changed {when} ({names}): check sequence lengths and loading",
}


def _names(changes: Sequence[SurroundingChange]) -> str:
    told = [f"{one.name} {one.before} to {one.now}" for one in changes[:MOST_NAMES]]
    more = len(changes) - len(told)
    return ", ".join(told) + (f" and {more} more" if more else "")


def _by_ranks(ranks: Sequence[SlowRank]) -> list[str]:
    if not ranks:
        return []
    nodes = sorted({one.node for one in ranks if one.node})
    where = f" on {', '.join(nodes[:MOST_NAMES])}" if nodes else ""
    names = ", ".join(str(one.rank) for one in ranks[:MOST_NAMES])
    slowest = max(one.ratio for one in ranks)
    return [f"rank {names}{where} became up to {slowest:.0%} slower than the middle one: check those devices"]


def _by_terms(why: Attribution) -> list[str]:
    """The part that grew most, if anything is known about it."""
    return [f"look at {LOOK_AT[one.term]}" for one in why.terms[:1] if one.term in LOOK_AT]


def _by_figure(finding: Finding) -> list[str]:
    if finding.figure == MEMORY:
        return ["peak memory grew: the next longer batch may not fit"]
    if finding.figure == SPREAD:
        return ["ranks drifted apart: look for a slow device or uneven data"]
    return []
