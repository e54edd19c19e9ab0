"""A scripted language model at a real OpenAI-compatible endpoint: it answers every question of a session
from what the prompt shows, looks something up first where it is offered tools, and counts what it was asked.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

from tests.integration.llm import replies
from tests.integration.llm.replies import CLAIMS, Played, Seen
from tests.integration.llm.scripted_server import ScriptedServer

NAME = "scripted-model"
ANSWERS: Mapping[str, Mapping[str, Any]] = {
    "read_notes": {"statements": []},
    "revise_worklist": {"items": []},
    "propose_plans": {"suggestions": []},
    "explain": CLAIMS,
    "answer_question": {"claims": [{"subject": "p1", "relation": "fits"}]},
}
LOOKUPS: Mapping[str, Mapping[str, Any]] = {
    "find_knowledge": {"query": "exposed tensor-parallel communication"},
    "predict_plan": {},
}
"""Called together, in one reply, before the answer."""


class Model(ScriptedServer):
    """`answered` counts the questions that it answered, by name, and `requests` every request."""

    def __init__(
        self,
        without: Collection[str] = frozenset(),
        streams: bool = True,
        before: Callable[[Seen], Played | None] = lambda seen: None,
    ) -> None:
        super().__init__(then=self.reply, without=without, streams=streams)
        self.answers = ANSWERS
        self.answered: Counter[str] = Counter()
        self.looked_up: Counter[str] = Counter()
        self.before = before
        """Called before an answer: a test acts just then, or sends something else in its place."""
        self._counting = threading.Lock()

    @property
    def requests(self) -> int:
        return len(self.seen)

    @property
    def settings(self) -> dict[str, str]:
        """What an installation is configured with, to use this model."""
        return {"llm_base_url": self.base_url, "llm_model": NAME, "llm_api_key": "a-key"}

    def reply(self, seen: Seen) -> Played:
        instead = self.before(seen)
        if instead is not None:
            return instead
        wanted = [(name, given) for name, given in LOOKUPS.items() if name in seen.tools]
        if wanted and not any(message["role"] == "tool" for message in seen.messages):
            with self._counting:
                self.looked_up.update(name for name, _ in wanted)
            return replies.calls(*wanted)(seen)
        with self._counting:
            self.answered[seen.question] += 1
        return replies.answer(self.answer(seen))(seen)

    def answer(self, seen: Seen) -> Mapping[str, Any]:
        if seen.question == "find_cause":
            competing = seen.data["competing"][0]
            shown = [item["ref"] for item in competing["evidence"]]
            return {"cause": competing["cause"], "references": shown}
        if seen.question == "confirm_reading":  # the claim holds, its opposite does not
            return {"verdict": "no" if self.answered["confirm_reading"] % 2 == 0 else "yes"}
        return self.answers[seen.question]
