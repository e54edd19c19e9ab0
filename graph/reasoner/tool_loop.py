"""An answer by tool calls: the model looks things up, a limited number of times, then hands its answer in."""

from graph.reasoner.client import Call, Completion
from graph.reasoner.conversation import Conversation
from graph.reasoner.extract import UnusableError, check_answer, read_answer
from graph.reasoner.faults import BAD_REQUEST, TOOL_LOOP, Fault
from graph.reasoner.question import A, Question
from graph.reasoner.structured import correction, unusable
from graph.reasoner.tool_calls import Bench, spec_of

SUBMIT = "submit_answer"
MOST_ROUNDS = 6
MOST_CALLS_AT_ONCE = 6
ENOUGH = f"No more lookups. Call {SUBMIT} now, with what you know."


def answer_with_tools(talk: Conversation, question: Question[A]) -> A:
    """Raises Fault where the endpoint calls no tools, the loop does not end or the answer is not valid."""
    bench = Bench(question.tools)
    submit = spec_of(SUBMIT, "Hand in the answer. Call it once, at the end.", question.answer)
    calling = corrected = False
    for _ in range(MOST_ROUNDS):
        reply = talk.go_on(tools=[*bench.specs(), submit])
        calling = calling or bool(reply.calls)
        if _is_lookup(reply):
            _look_up(talk, bench, reply)
            if talk.spend.is_much:
                break
            continue
        try:
            return _submitted(reply, question.answer)
        except UnusableError as error:
            if not calling:
                raise Fault(BAD_REQUEST, "the endpoint calls no tools") from None
            if corrected:
                raise unusable(reply, error) from None
            corrected = True
            _return_unread(talk, reply, correction(reply, error, question, shows_schema=False))
    return _last_answer(talk, question, submit)


def _last_answer(talk: Conversation, question: Question[A], submit: dict[str, object]) -> A:
    """Only handing in is left to the model."""
    talk.tell(ENOUGH)
    reply = talk.go_on(tools=[submit])
    if _is_lookup(reply):
        raise Fault(TOOL_LOOP, f"the model went on calling tools after {MOST_ROUNDS} rounds")
    try:
        return _submitted(reply, question.answer)
    except UnusableError as error:
        raise unusable(reply, error) from None


def _is_lookup(reply: Completion) -> bool:
    return bool(reply.calls) and all(call.name != SUBMIT for call in reply.calls)


def _look_up(talk: Conversation, bench: Bench, reply: Completion) -> None:
    for place, call in enumerate(reply.calls):
        spare = place < MOST_CALLS_AT_ONCE
        talk.hand_back(
            call, bench.run(call) if spare else f"not run: {MOST_CALLS_AT_ONCE} calls at once are the most"
        )


def _submitted(reply: Completion, answer: type[A]) -> A:
    """The answer as it was handed in, or written out by a model that forgot to."""
    call = _hand_in(reply)
    if call is None:
        return read_answer(reply.text, answer)
    if call.arguments is None:
        raise UnusableError("the arguments are not a JSON object", is_json=False)
    return check_answer(dict(call.arguments), answer)


def _hand_in(reply: Completion) -> Call | None:
    return next((call for call in reply.calls if call.name == SUBMIT), None)


def _return_unread(talk: Conversation, reply: Completion, says: str) -> None:
    """Every call must be answered before the conversation can go on."""
    for call in reply.calls:
        talk.hand_back(call, says if call.name == SUBMIT else "not run")
    if not reply.calls:
        talk.tell(f"{says}\nHand it in by calling {SUBMIT}.")
