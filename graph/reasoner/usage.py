"""What a question costs: tokens as the endpoint counts them, else estimated, and money from the prices."""

from dataclasses import dataclass

from graph.reasoner.endpoint import Endpoint

CHARACTERS_PER_TOKEN = 4
"""OpenAI's rule of thumb for English text; used only where the endpoint reports nothing."""
MILLION = 1_000_000


@dataclass
class Spend:
    """Grows with every reply to one question, the unusable ones too."""

    endpoint: Endpoint
    input_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False

    def add(self, input_tokens: int, output_tokens: int) -> None:
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens

    def estimate(self, asked: str, answered: str) -> None:
        """For a reply that came without its token counts."""
        self.add(tokens_of(asked), tokens_of(answered))
        self.is_estimated = True

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def is_much(self) -> bool:
        return self.tokens >= self.endpoint.most_question_tokens

    @property
    def cost(self) -> float:
        priced_input = self.input_tokens * self.endpoint.price_per_million_input
        return (priced_input + self.output_tokens * self.endpoint.price_per_million_output) / MILLION

    def __str__(self) -> str:
        mark = ", estimated from the length: the endpoint reports none" if self.is_estimated else ""
        return f"{self.input_tokens} tokens in, {self.output_tokens} out{mark}"


def tokens_of(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)
