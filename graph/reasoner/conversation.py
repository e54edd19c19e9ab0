"""One conversation with the model: what was said, what it cost, and how it reads in the trail."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graph.reasoner.client import Call, Client, Completion, Message, spoken
from graph.reasoner.faults import REFUSAL, Fault
from graph.reasoner.usage import Spend

MOST_TRAIL_CHARACTERS = 20_000
MOST_REPEATED_CHARACTERS = 4000
"""Of an unusable reply, when the model is asked to mend it."""
FILTERED = "content_filter"


@dataclass
class Conversation:
    client: Client
    messages: list[Message]
    spend: Spend
    deadline: float

    def go_on(self, **options: object) -> Completion:
        """The model's next reply; raises Fault where there is none or the model refuses."""
        reply = self.client.complete(self.messages, options, self.deadline)
        self._count(reply, options)
        if reply.refusal or reply.finish == FILTERED:
            raise Fault(REFUSAL, "the model refuses to answer")
        self.messages.append(spoken(reply, MOST_REPEATED_CHARACTERS))
        return reply

    def tell(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def hand_back(self, call: Call, result: str) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    def _count(self, reply: Completion, options: Mapping[str, Any]) -> None:
        if reply.tokens:
            self.spend.add(*reply.tokens)
        else:
            asked = json.dumps([self.messages, options], default=str)
            self.spend.estimate(asked, reply.text + "".join(str(one.arguments) for one in reply.calls))


def trail_of(messages: Sequence[Message], spend: Spend) -> str:
    """The conversation as text, its middle left out where it is long."""
    text = "\n\n".join([*(_told(one) for one in messages), f"[{spend}]"])
    if len(text) <= MOST_TRAIL_CHARACTERS:
        return text
    half = MOST_TRAIL_CHARACTERS // 2 - 50
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def _told(message: Message) -> str:
    calls = [
        f"{one['function']['name']}({one['function']['arguments']})" for one in message.get("tool_calls", [])
    ]
    return "\n".join([f"[{message['role']}]", *([message["content"]] if message["content"] else []), *calls])
