"""The reader of engineers' notes without a model: phrasings that state something, remarks that state nothing.

    python -m benchmarks.notes [--misses]

A phrasing is right if the scenario read from it equals the one that is structured by hand: same constraints,
same figures of the cluster, same measured facts. A remark is right if it changes nothing; a question to the
person is no change. `developed` is what the reader was written with, `held out` was written afterwards in
other styles (terse, chatty, non-native, with slips) and shows how it generalises.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, Field, JsonValue

from tools.recommend.notes import apply_notes
from tools.scenario import Scenario, parse_scenario
from tools.search.constraints import parse_constraints

REPO = Path(__file__).resolve().parents[1]
FOLDER = REPO / "benchmarks" / "phrasings"
EXAMPLE = REPO / "examples" / "llama-3.1-70b-64xh100.json"
SETS = {"developed": "developed.toml", "held out": "held_out.toml"}
BARS = {"state": 0.75, "nothing": 1.0}


class Expected(BaseModel):
    constraints: dict[str, JsonValue] = Field(default_factory=dict)
    overrides: dict[str, JsonValue] = Field(default_factory=dict)
    topology: dict[str, JsonValue] = Field(default_factory=dict)
    facts: dict[str, float] = Field(default_factory=dict)


class Phrasing(BaseModel):
    text: str
    expect: Expected = Expected()


class PhrasingSet(BaseModel):
    state: list[Phrasing]
    nothing: list[Phrasing]


class Outcome(NamedTuple):
    phrasing: Phrasing
    is_right: bool
    got: str


def base_scenario() -> Scenario:
    raw = json.loads(EXAMPLE.read_text("utf-8"))
    raw["plan"] |= {"tp": 8, "pp": 4, "cp": 1, "dp": 2, "dp_shard": 2, "micro_batch_size": 1, "vpp": 1}
    return parse_scenario(raw)


def read_set(name: str) -> PhrasingSet:
    return PhrasingSet.model_validate(tomllib.loads((FOLDER / SETS[name]).read_text("utf-8")))


def structured(scenario: Scenario, expected: Expected) -> Scenario:
    """The scenario as a person would have written it instead of the notes."""
    raw = scenario.model_dump(mode="json", exclude_defaults=True)
    parts: Mapping[str, tuple[dict[str, JsonValue], dict[str, JsonValue]]] = {
        "constraints": (raw.setdefault("constraints", {}), expected.constraints),
        "overrides": (raw["cluster"].setdefault("overrides", {}), expected.overrides),
        "topology": (raw["cluster"].setdefault("topology", {}), expected.topology),
    }
    for place, values in parts.values():
        place |= values
    if not raw["cluster"]["topology"]:
        del raw["cluster"]["topology"]
    return parse_scenario(raw)


def judge_set(phrasings: list[Phrasing]) -> Iterator[Outcome]:
    scenario = base_scenario()
    for phrasing in phrasings:
        applied = apply_notes(phrasing.text, scenario)
        wanted = structured(scenario, phrasing.expect)
        facts = {
            fact.name: fact.value
            for fact in applied.facts
            if fact.name.startswith("measured") and fact.value is not None
        }
        got = applied.scenario
        same = (
            parse_constraints(got.constraints, got.plan) == parse_constraints(wanted.constraints, wanted.plan)
            and got.cluster == wanted.cluster
            and facts == phrasing.expect.facts
        )
        shown = (
            ", ".join(
                f"{statement.field} {statement.operator} {statement.value}" for statement in applied.accepted
            )
            or "nothing"
        )
        asked = "; ".join(question.text for question in applied.questions)
        yield Outcome(phrasing, same, f"{shown}{f' (asks: {asked})' if asked else ''}")


def main() -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--misses", action="store_true", help="show what was read otherwise")
    show = arguments.parse_args().misses
    print(f"{'phrasings':12}{'kind':>10}{'count':>7}{'right':>7}{'share':>8}{'bar':>6}")
    held = True
    for name in SETS:
        phrasings = read_set(name)
        for kind, chosen in (("state", phrasings.state), ("nothing", phrasings.nothing)):
            outcomes = list(judge_set(chosen))
            right = sum(outcome.is_right for outcome in outcomes)
            share = right / len(outcomes)
            held &= share >= BARS[kind]
            print(f"{name:12}{kind:>10}{len(outcomes):>7}{right:>7}{share:>8.1%}{BARS[kind]:>6.0%}")
            for outcome in outcomes:
                if show and not outcome.is_right:
                    print(f"    {outcome.phrasing.text!r}: {outcome.got}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
