"""What `asap runs check` finds of faults planted into published runs, and its false alarms on clean ones.

    python -m benchmarks runs_check [--half judged|chosen|all] [--seed 33] [--misses]

200 rows, drawn by a fixed seed, get one fault each: a unit (time in ms or minutes, memory in MiB), two
degrees swapped, another batch (in tokens, of a rank, of a node, of a micro-batch, twice, half, exchanged with
the sequence length), or they repeat a known row under another id. 200 rows stay as they are; where
a half of the sources has too few rows, some of them are drawn twice, with a fault and without. Sources are
ordered by name: thresholds were chosen on every other one (`--half chosen`), and the rest is what judges
them; it had been seen once when two bounds were widened, so its figures are a little too good. A row counts
as found if anything was found about it, a clean row as a false alarm likewise, warnings too.

Known to the check are the sources of the other half and the rows that duplicates repeat, so that every row is
one of a new source. Each row is seen in three ways: with the figures that its source printed (throughput
beside the step time), with the step time alone, and alone with no other row of its source beside it.
"""

import argparse
import copy
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, cast

from research.published import SWEEP_SOURCE, read_runs
from tools.model.row_checks import CheckedRow, check_rows
from tools.model.runs import parse_run
from tools.scenario.fields import JsonObject

SEED = 33
ROWS = 200
DEGREES = ("tp", "pp", "cp", "dp", "ep")
PARTS = ("unit", "swapped degree", "wrong batch", "duplicate")
EXTRA_FIGURES = ("tokens_per_s_per_device", "model_tflops_per_device", "tflops_per_device")
NODE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("judged", "chosen", "all"), default="judged")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--misses", action="store_true", help="list missed faults and false alarms")
    args = parser.parse_args()
    rows = measured_rows()
    sources = sorted({str(row["source"]) for row in rows})
    judged = {"judged": sources[1::2], "chosen": sources[::2], "all": sources}[args.half]
    drawn = [row for row in rows if str(row["source"]) in judged]
    others = [row for row in rows if str(row["source"]) not in judged]
    random.Random(args.seed).shuffle(drawn)
    planted = plant(drawn[:ROWS], random.Random(args.seed))
    repeated = range(PARTS.index("duplicate"), ROWS, len(PARTS))
    clean = [row for i, row in enumerate(drawn) if i not in repeated][-ROWS:]
    originals = [row for row, (part, _) in zip(drawn, planted, strict=False) if part == "duplicate"]
    known = [parse_run(row) for row in (*others, *originals)]
    print(f"{len(planted)} rows with a fault and {len(clean)} clean rows of {len(judged)} sources\n")
    print(f"{'':<32}{'found':>8}  " + "".join(f"{part:>16}" for part in PARTS) + f"{'false alarms':>16}")
    file = [*(row for _, row in planted), *clean]
    ways: dict[str, Callable[[Sequence[JsonObject]], list[CheckedRow]]] = {
        "as published": lambda rows: check_rows(rows, known),
        "step time alone": lambda rows: check_rows([without_figures(row) for row in rows], known),
        "step time alone, row by row": lambda rows: [
            check_rows([without_figures(row)], known)[0] for row in rows
        ],
    }
    for name, check in ways.items():
        checked = check(file)
        faulty, alarms = checked[: len(planted)], [row for row in checked[len(planted) :] if row.findings]
        found = Counter(part for (part, _), row in zip(planted, faulty, strict=True) if row.findings)
        of = Counter(part for part, _ in planted)
        shares = "".join(f"{found[part] / of[part]:>16.1%}" for part in PARTS)
        print(f"{name:<32}{found.total() / len(planted):>8.1%}  {shares}{len(alarms) / len(clean):>16.1%}")
        if args.misses:
            for (part, _), row in zip(planted, faulty, strict=True):
                if not row.findings:
                    print(f"  missed {part}: {row.id} off {row.log_error or 0:+.2f}")
            for row in alarms:
                print(f"  false alarm: {row.id} {'; '.join(map(str, row.findings))}")


def measured_rows() -> list[JsonObject]:
    """Of runs/, but for the sweep, whose source calls its times uncertain, and rows of low confidence."""
    runs = [run for run in read_runs() if run.measured.step_time_s and run.confidence != "low"]
    return [run.to_data() for run in runs if run.source != SWEEP_SOURCE]


def without_figures(row: JsonObject) -> JsonObject:
    measured = row["measured"]
    assert isinstance(measured, dict)
    return {**row, "measured": {name: v for name, v in measured.items() if name not in EXTRA_FIGURES}}


def plant(rows: Sequence[JsonObject], draw: random.Random) -> list[tuple[str, JsonObject]]:
    """A fault for each row, in turn; a row that has no two different degrees gets another batch."""
    planted = []
    for number, original in enumerate(rows):
        row, part = copy.deepcopy(original), PARTS[number % len(PARTS)]
        plan, training, cluster = (section(row, "scenario", name) for name in ("plan", "training", "cluster"))
        measured = section(row, "measured")
        pairs = [(a, b) for i, a in enumerate(DEGREES) for b in DEGREES[:i] if plan[a] != plan[b]]
        if part == "swapped degree" and not pairs:
            part = "wrong batch"
        if part == "unit":
            units = [("step_time_s", 1e3), ("step_time_s", 1 / 60)]
            units += [("peak_memory_gib", 1024.0)] if measured.get("peak_memory_gib") else []
            name, factor = draw.choice(units)
            measured[name] *= factor
        elif part == "swapped degree":
            a, b = draw.choice(pairs)
            plan[a], plan[b] = plan[b], plan[a]
        elif part == "wrong batch":
            nodes = cluster["num_devices"] // (cluster.get("devices_per_node") or NODE)
            training.update(draw.choice(wrong_batches(training, plan, max(int(nodes), 1))))
        else:
            measured["step_time_s"] *= draw.uniform(0.996, 1.004)
        planted.append((part, {**row, "id": f"planted-{number}"}))
    return planted


def section(row: JsonObject, *path: str) -> dict[str, float]:
    """A part of a row, whose numbers are changed in place."""
    found: Any = row
    for name in path:
        found = found[name]
    return cast(dict[str, float], found)


def wrong_batches(training: dict[str, float], plan: dict[str, float], nodes: int) -> list[dict[str, float]]:
    """The batches that people write by mistake, which differ from the true one."""
    batch, seq_len = int(training["global_batch_size"]), int(training["seq_len"])
    sizes = {batch * seq_len, batch // int(plan["dp"]), batch // nodes, int(plan["micro_batch_size"])}
    sizes |= {2 * batch, batch // 2}
    wrong: list[dict[str, float]] = [{"global_batch_size": size} for size in sorted(sizes - {batch, 0})]
    return [*wrong, {"global_batch_size": seq_len, "seq_len": batch}] if batch != seq_len else wrong


if __name__ == "__main__":
    main()
