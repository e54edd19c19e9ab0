"""What a change of a training configuration is predicted to do, as a Markdown comment.

    python examples/predict_change.py before.json after.json > comment.md

Both files hold a scenario with its plan (`asap import` makes one from a framework's configuration).
examples/github-action.yml puts the comment under a pull request. Exit status 3: the new plan does not fit.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from service.cli.io import read_object
from tools.errors import AsapError
from tools.model.predict import Prediction, predict
from tools.recommend.report import changes
from tools.recommend.words import difference, short
from tools.scenario import Plan, Scenario, parse_scenario

NOTHING_FEASIBLE = 3


def comment(before: Scenario, after: Scenario) -> tuple[str, bool]:
    """The text, and whether the new plan fits."""
    old, new = predict([before, after])
    lines = [f"### Predicted effect: {_headline(old, new)}", "", *_table(before, after, old, new), ""]
    if before.training == after.training:
        lines.append(difference(old, new) or "No term of the step moves by more than half a percent.")
    else:
        lines.append("The training settings differ too, so the steps are not the same work.")
    lines += ["", "Predicted by ASAP, without a device; the intervals hold 80% of published runs."]
    return "\n".join(lines) + "\n", new.fits


def _headline(old: Prediction, new: Prediction) -> str:
    if not new.fits:
        return f"does not fit ({new.peak_memory_gib:.1f} GiB per device)"
    ratio = old.step_time_s / new.step_time_s
    return f"{ratio:.2f}x the speed" if abs(ratio - 1) >= 0.005 else "no change of speed"


def _table(before: Scenario, after: Scenario, old: Prediction, new: Prediction) -> list[str]:
    plans = [plan for plan in (before.plan, after.plan) if plan is not None]
    moved = ", ".join(
        f"{change.field} {change.from_} → {change.to}" for change in changes(plans[0], plans[1])
    )
    return [
        f"Changed: {moved or 'nothing of the plan'}",
        "",
        "| | plan | step | 80% interval | MFU | memory per device |",
        "| --- | --- | ---: | --- | ---: | ---: |",
        *(_row(*given) for given in zip(("before", "after"), plans, (old, new), strict=True)),
    ]


def _row(name: str, plan: Plan, found: Prediction) -> str:
    times = f"{found.step_time_s:.2f} s | {found.step_time_low_s:.2f} to {found.step_time_high_s:.2f} s"
    return f"| {name} | {short(plan)} | {times} | {found.mfu:.1%} | {found.peak_memory_gib:.1f} GiB |"


def main(words: Sequence[str]) -> int:
    if len(words) != 2:
        sys.stderr.write(f"usage: {Path(__file__).name} BEFORE AFTER\n")
        return 2
    try:
        text, fits = comment(*(parse_scenario(read_object(word)) for word in words))
    except AsapError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(text)
    return 0 if fits else NOTHING_FEASIBLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
