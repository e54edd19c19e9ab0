"""Where a language model answers and how patient ASAP is with it. Who reads the settings: the service."""

from dataclasses import dataclass, field

from tools.address import parse_address
from tools.errors import InputError

LOCAL_KEY = "none"
"""Sent where no key is configured: the protocol wants one, and a key meant for another host must not leak."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible chat endpoint; prices are of a million tokens, in the currency of the budget."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 60.0
    """For one request, from the first byte sent to the last received."""
    deadline_s: float = 180.0
    """For one question with all its requests, repetitions and pauses."""
    max_tokens: int = 4096
    """Of one reply; the thoughts of a reasoning model count."""
    most_question_tokens: int = 60_000
    """Once a question has cost so many, its tool loop is told to end."""
    retries: int = 2
    temperature: float | None = 0.0
    price_per_million_input: float = 0.0
    price_per_million_output: float = 0.0

    def __post_init__(self) -> None:
        parse_address("base_url", self.base_url)
        if not self.model:
            raise InputError("model", self.model, "must name the model")
        for name in ("timeout_s", "deadline_s", "max_tokens", "most_question_tokens"):
            if not getattr(self, name) > 0:
                raise InputError(name, getattr(self, name), "must be above 0")
        for name in ("retries", "price_per_million_input", "price_per_million_output"):
            if not getattr(self, name) >= 0:
                raise InputError(name, getattr(self, name), "must not be below 0")

    @property
    def key(self) -> str:
        return self.api_key or LOCAL_KEY
