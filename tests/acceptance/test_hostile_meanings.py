"""Through the running service: no hostile meaning reaches a person, and honest claims are not refused."""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.acceptance.model import Model
from tests.acceptance.product import Server, serving
from tests.integration.llm.hostile import HOSTILE, NOTES, answers, is_shown
from tests.integration.llm.replies import Seen
from tests.workloads import SMALL

ASKED = {"read_notes", "find_cause", "propose_plans", "revise_worklist", "explain", "answer_question"}
TOGETHER = 5
"""Sentences in one session, one in each answer of the model in turn."""
HONEST, MAX_REFUSED = 100, 0.01
SIZES = (8, 16, 32, 64)
"""Global batches of the sessions with honest claims."""


class HostileModel(Model):
    """Each answer says another of the sentences."""

    def __init__(self, texts: Sequence[str]) -> None:
        super().__init__()
        self.texts = texts
        self.said: set[str] = set()

    def answer(self, seen: Seen) -> Mapping[str, Any]:
        text = self.texts[self.answered.total() % len(self.texts)]
        self.said.add(text)
        place = "subject" if self.answered.total() % 2 else "object"
        cause = seen.data["competing"][0]["cause"] if seen.question == "find_cause" else ""
        return answers(place, text, cause)[seen.question]


def everything_shown(server: Server, id: str) -> str:
    """What people and programs see of a session and its answer: not the trail, which quotes the model."""
    report = json.dumps(server.report(id), ensure_ascii=False)
    with server.http as http:
        answered = http.post(f"/v1/sessions/{id}/ask", json={"question": "What should we do first?"})
        answered.raise_for_status()
        pages = [http.get(path) for path in (f"/v1/sessions/{id}", f"/sessions/{id}", "/")]
    assert [page.status_code for page in pages] == [200] * len(pages)
    return html.unescape("\n".join([report, answered.json()["answer"], *(page.text for page in pages)]))


def test_no_hostile_meaning_reaches_a_person_through_the_service(tmp_path: Path) -> None:
    groups = [HOSTILE[place : place + TOGETHER] for place in range(0, len(HOSTILE), TOGETHER)]
    with HostileModel(()) as model, serving(tmp_path, **model.settings) as server:
        for texts in groups:
            model.texts, before = texts, dict(model.answered)
            id = server.submit(notes=NOTES)
            shown = everything_shown(server, id)
            assert {name for name in ASKED if model.answered[name] > before.get(name, 0)} == ASKED
            assert not [text for text in texts if is_shown(text, shown)]
            assert server.report(id)["usage"]["fell_back"] == 0
        assert model.said == {*HOSTILE}


class HonestModel(Model):
    """It claims what the figures of its prompt show, read without the product's own checks."""

    claimed = 0

    def answer(self, seen: Seen) -> Mapping[str, Any]:
        if seen.question != "explain":
            return super().answer(seen)
        shown = seen.data
        rationales = [list(honest_claims(shown, entry))[:8] for entry in shown["proposals"]]
        verdict = [rationales[0][0]]
        if shown["cause"]:
            verdict.append({"subject": "today", "relation": "limited_by", "object": shown["cause"]})
        changes = [
            {"subject": f"if{number}", "relation": "alters_the_answer"}
            for number, case in enumerate(shown["sensitivity"], start=1)
            if not case["stays"]
        ][:8]
        self.claimed += sum(map(len, rationales)) + len(verdict) + len(changes)
        return {"verdict": verdict, "would_change": changes, "rationales": rationales}


def honest_claims(shown: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    name, own, today = f"p{entry['rank']}", entry["prediction"], shown["baseline"]
    is_faster, is_slower = entry["speedup_low"] > 1, entry["speedup_high"] < 1
    effect = "faster_than" if is_faster else "slower_than" if is_slower else "even_with"
    yield {"subject": name, "relation": effect, "object": "today"}
    yield {"subject": name, "relation": "fits" if own["fits"] else "does_not_fit"}
    if own["peak_memory_gib"] != today["peak_memory_gib"]:
        less = own["peak_memory_gib"] < today["peak_memory_gib"]
        relation = "needs_less_memory_than" if less else "needs_more_memory_than"
        yield {"subject": name, "relation": relation, "object": "today"}
    terms = own["breakdown_s"]
    yield {"subject": name, "relation": "spends_on", "object": max(terms, key=lambda term: terms[term])}
    moved = {term: today["breakdown_s"][term] - seconds for term, seconds in terms.items()}
    for relation, term in (
        ("shrinks", max(moved, key=lambda t: moved[t])),
        ("grows", min(moved, key=lambda t: moved[t])),
    ):
        if abs(moved[term]) > 0.01 * today["step_time_s"] and (moved[term] > 0) == (relation == "shrinks"):
            yield {"subject": name, "relation": relation, "object": term}
    for change in entry["changes"][:1]:
        yield {"subject": name, "relation": "changes", "object": change["field"]}
    for evidence in entry["evidence"][:1]:
        backed = {"subject": name, "relation": "backed_by", "object": evidence["ref"]}
        yield {**backed, "evidence": [evidence["ref"]]}
    for number, _ in enumerate(entry["risks"][:1], start=1):
        yield {"subject": name, "relation": "risks", "object": str(number)}


def test_honest_claims_are_not_refused_through_the_service(tmp_path: Path) -> None:
    refused = 0
    with HonestModel() as model, serving(tmp_path, **model.settings) as server:
        for size in SIZES:
            report = server.report(server.submit(training={**SMALL["training"], "global_batch_size": size}))
            refused += len(report["verification"]["texts_refused"])
            assert report["usage"]["fell_back"] == 0
    assert model.answered["explain"] >= len(SIZES)
    assert model.claimed >= HONEST
    assert refused <= MAX_REFUSED * model.claimed
