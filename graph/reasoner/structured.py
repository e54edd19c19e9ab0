"""An answer as one JSON object: held to a schema by the endpoint, or only asked for in the prompt."""

from typing import Any

from graph.reasoner.client import Completion
from graph.reasoner.conversation import Conversation
from graph.reasoner.extract import UnusableError, read_answer
from graph.reasoner.faults import BAD_REQUEST, MALFORMED, TRUNCATED, Fault
from graph.reasoner.prompts import schema_text
from graph.reasoner.question import A, Question
from graph.reasoner.schema import strict_schema
from graph.reasoner.ways import Way

CUT_OFF = "length"


def answer_as_json(talk: Conversation, question: Question[A], way: Way) -> A:
    """Asks once more where the first reply is unusable; raises Fault after that."""
    options = response_format(question, way)
    reply = talk.go_on(**options)
    try:
        return read_answer(reply.text, question.answer)
    except UnusableError as error:
        if way is Way.SCHEMA and not error.is_json:
            raise Fault(BAD_REQUEST, "the endpoint ignores the JSON schema") from None
        talk.tell(correction(reply, error, question, shows_schema=way is Way.SCHEMA))
    reply = talk.go_on(**options)
    try:
        return read_answer(reply.text, question.answer)
    except UnusableError as error:
        raise unusable(reply, error) from None


def response_format(question: Question[A], way: Way) -> dict[str, Any]:
    if way is Way.OBJECT:
        return {"response_format": {"type": "json_object"}}
    if way is Way.TEXT:
        return {}
    schema = {"name": question.name, "strict": True, "schema": strict_schema(question.answer)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def correction(reply: Completion, error: UnusableError, question: Question[A], shows_schema: bool) -> str:
    """What was wrong; with the schema where the model may never have seen it."""
    if reply.finish == CUT_OFF:
        return "That was cut off at the limit of its length. Answer again, much shorter."
    schema = f"\n{schema_text(strict_schema(question.answer))}" if shows_schema else ""
    return f"That is not a valid answer: {error}. Answer again.{schema}"


def unusable(reply: Completion, error: UnusableError) -> Fault:
    if reply.finish == CUT_OFF:
        return Fault(TRUNCATED, "the model's answer was cut off at the limit of its length, twice")
    return Fault(MALFORMED, f"the model's answer was not valid, twice: {str(error)[:300]}")
