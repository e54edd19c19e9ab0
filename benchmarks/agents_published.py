"""Workloads of published recipes, each with a poor plan of today's and an engineer's notes, and answers about
them that a capable model gave.

The expert's plan is the recipe's own. Recipes of the same model on the same device and cases of that device
are left out of the knowledge. Each note states one or two things that are true of the expert's plan, in the
words of an engineer who does not write for a parser; all were written before the rules or a model read any.
The answers are to the questions of QUESTIONS; the expert rules answer the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from graph.answers import A, Question, Reply, check_answer
from graph.context import Context
from graph.prompts import task_text
from graph.rules import Rules
from tools.frameworks.formats import preset_models
from tools.kb import KnowledgeBase
from tools.kb.entries import Case
from tools.kb.recipes import Recipe, load_recipes
from tools.kb.seed import Seed, load_seed
from tools.recommend.optimize import workload_of
from tools.recommend.score import family_of
from tools.scenario import parse_scenario
from tools.scenario.spec import Result
from tools.search.search import Search
from tools.search.space import get_plan

ANSWERS = Path(__file__).with_name("agents_answers.jsonl")
QUESTIONS = ("read_notes", "confirm_reading", "propose_plans")
PRESETS = {
    "Llama-3-70B": "Llama 3.1 70B",
    "Llama-3.1-405B": "Llama 3.1 405B",
    "gpt-oss-120b": "gpt-oss 120B",
    "Qwen3-235B-A22B": "Qwen3 235B-A22B",
    "DeepSeek-V3": "DeepSeek-V3",
}
"""Models with recipes on several devices, by their names among the presets."""
MIN_DEVICES = 64
POOR = 0.9
"""Today's plan: of all legal plans that fit, the one that so many are faster than."""
NOTES = {
    ("DeepSeek-V3", "b200"): "The checkpoints we have to resume from are cut into eight pipeline stages, and "
    "converting them is out of the question this week.",
    ("DeepSeek-V3", "b300"): "Expert dispatch must not leave a node: eight-way at the very most, the fabric "
    "team insists.",
    ("DeepSeek-V3", "gb200"): "We settled on four pipeline stages when the converter was written and it "
    "handles nothing else.",
    ("DeepSeek-V3", "gb300"): "The converter only writes two-stage pipelines. Everything else is open.",
    ("DeepSeek-V3", "h100-sxm-80gb"): "Experts are to be spread over sixty-four ranks, the dispatcher kernel "
    "is built for that.",
    ("Llama-3-70B", "gb200"): "Tensor parallel groups of two, please: the tray has two superchips that share "
    "memory.",
    ("Llama-3-70B", "gb300"): "No tensor parallelism on this machine, the team does not want to maintain "
    "those kernels.",
    ("Llama-3-70B", "h100-sxm-80gb"): "Checkpoints are in eight pipeline pieces with four-way tensor slices; "
    "both must stay.",
    ("Llama-3.1-405B", "b200"): "Context parallelism of two is already wired into the data loader and has to "
    "remain.",
    ("Llama-3.1-405B", "gb200"): "Sixteen pipeline stages, as in the run before; the reload path depends on "
    "it.",
    ("Llama-3.1-405B", "gb300"): "Not more than eight stages in the pipeline: beyond that the interleaving "
    "code deadlocks.",
    ("Llama-3.1-405B", "h100-sxm-80gb"): "The loader splits every sequence in two, so cp is two and cannot "
    "change.",
    ("Qwen3-235B-A22B", "b200"): "Keep the all-to-all of the experts inside one node of eight.",
    ("Qwen3-235B-A22B", "b300"): "All-to-all across nodes was a disaster on this fabric. Experts stay within "
    "the eight devices of a node, and the pipeline keeps its eight stages.",
    ("Qwen3-235B-A22B", "gb200"): "The checkpoint converter is written for eight pipeline stages.",
    ("Qwen3-235B-A22B", "gb300"): "Four stages in the pipeline is what the release branch supports.",
    ("Qwen3-235B-A22B", "h100-sxm-80gb"): "The pipeline has eight stages in all our configs; please leave it "
    "at that.",
    ("gpt-oss-120b", "b200"): "Pipeline parallelism is off the table: the evaluation harness cannot load "
    "staged checkpoints.",
    ("gpt-oss-120b", "b300"): "No pipeline for this model. Serving loads the same checkpoints.",
    ("gpt-oss-120b", "gb200"): "All sixty-four devices share one NVLink domain, so let the experts span all "
    "of it.",
    ("gpt-oss-120b", "gb300"): "We want sixteen-way expert parallelism, the router's capacity tables are "
    "built for sixteen.",
    ("gpt-oss-120b", "h100-sxm-80gb"): "Four pipeline stages, because the optimizer state only fits that way "
    "on these cards.",
}


@dataclass(frozen=True)
class PublishedWorkload:
    """The fastest recipe of a model on a device, to be found without it."""

    recipe: Recipe
    raw: dict[str, Any]

    @property
    def id(self) -> str:
        return self.recipe.id

    @property
    def family(self) -> tuple[int, ...]:
        return family_of(self.recipe.plan)

    def hidden_from(self, context: Context) -> Context:
        """What is known without this recipe and its likes."""
        own, seed = self.recipe, load_seed()
        recipes = [r for r in load_recipes() if (r.model, r.device) != (own.model, own.device)]
        entries = [e for e in seed.entries if not (isinstance(e.body, Case) and e.body.device == own.device)]
        knowledge = KnowledgeBase(Seed(tuple(entries), f"{seed.version} without {own.device}"))
        return replace(context, knowledge=knowledge, recipes=recipes)


@cache
def published_workloads() -> tuple[PublishedWorkload, ...]:
    """One for each model and device."""
    fastest: dict[tuple[str, str], Recipe] = {}
    for recipe in load_recipes():
        is_known = recipe.model.name in PRESETS and recipe.framework == "megatron-core"
        if is_known and recipe.num_devices >= MIN_DEVICES:
            best = fastest.setdefault((recipe.model.name, recipe.device), recipe)
            if recipe.tokens_per_s_per_device > best.tokens_per_s_per_device:
                fastest[recipe.model.name, recipe.device] = recipe
    return tuple(PublishedWorkload(fastest[key], _request(fastest[key])) for key in sorted(fastest))


def _request(recipe: Recipe) -> dict[str, Any]:
    raw = {
        "model": {**preset_models()[PRESETS[recipe.model.name]], "name": recipe.model.name},
        "cluster": {"device": recipe.device, "num_devices": recipe.num_devices},
        "training": {
            "seq_len": recipe.seq_len,
            "global_batch_size": recipe.global_batch_size,
            "precision": recipe.precision,
            "framework": recipe.framework,
        },
    }
    workload = workload_of(parse_scenario(raw, need_plan=False))
    every = Search(workload.scenario, workload.constraints, workload.calibration).run().every
    order = np.argsort(every.step_time_s, kind="stable")
    plan = get_plan(every.plans, int(order[int(POOR * (len(order) - 1))]))
    return {**raw, "plan": plan.model_dump(mode="json"), "notes": NOTES[recipe.model.name, recipe.device]}


class AnswersLabel(Result):
    """The first line of the answers."""

    format: str = "asap-answers-1"
    answered_by: str
    recorded_at: str


class RecordedAnswer(Result):
    """What was asked about one workload, as far as the answer rests on it, and the answer."""

    workload: str
    question: str
    request: dict[str, JsonValue]
    answer: dict[str, JsonValue] | None = None


@dataclass
class Recorded:
    """A reasoner that gives recorded answers; what is not recorded is kept in `missing`, for the rules."""

    name: str
    workload: str
    answers: Sequence[RecordedAnswer]
    missing: list[tuple[RecordedAnswer, str]] = field(default_factory=list)
    """The entry without its answer, and the whole prompt."""
    given: int = 0
    """Recorded answers that were asked for."""

    def ask(self, question: Question[A]) -> Reply[A]:
        if question.name not in QUESTIONS:
            return Rules().ask(question)
        entry = RecordedAnswer(
            workload=self.workload,
            question=question.name,
            request=_relevant_request(question.name, question.payload),
        )
        for known in self.answers:
            is_same = (known.workload, known.question) == (self.workload, question.name)
            # Proposals move with the cost model: the answer about them stays.
            is_same &= question.name == "propose_plans" or known.request == entry.request
            if is_same and known.answer is not None:
                self.given += 1
                return Reply(check_answer(known.answer, question.answer), self.name)
        self.missing.append((entry, task_text(question.name, question.payload)))
        return Rules().ask(question)


def _relevant_request(name: str, payload: Mapping[str, Any]) -> dict[str, JsonValue]:
    if name == "propose_plans":
        return {
            "proposals": payload["digest"]["proposals"],
            "recipes": [recipe["id"] for recipe in payload["recipes"]],
        }
    return {key: value for key, value in payload.items() if key != "scenario"}


def read_answers() -> tuple[AnswersLabel, list[RecordedAnswer]]:
    lines = ANSWERS.read_text("utf-8").splitlines() if ANSWERS.is_file() else []
    if not lines:
        return AnswersLabel(answered_by="no model", recorded_at=""), []
    answers = [RecordedAnswer.model_validate_json(line) for line in lines[1:]]
    return AnswersLabel.model_validate_json(lines[0]), answers


def write_missing(file: Path, missing: Sequence[tuple[RecordedAnswer, str]]) -> None:
    """Entries to be answered, and their prompts beside them, one file each."""
    file.write_text("".join(f"{entry.model_dump_json()}\n" for entry, _ in missing))
    folder = file.with_suffix(".prompts")
    folder.mkdir(exist_ok=True)
    for number, (entry, prompt) in enumerate(missing):
        (folder / f"{number:03} {entry.workload} {entry.question}.txt").write_text(prompt)
