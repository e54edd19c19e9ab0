"""What notes say beside the plan's fields: measured steps, memory, links, checkpoints, number of changes."""

import re
from collections.abc import Sequence

from tools.recommend.notes_grammar import Clause, Findings
from tools.recommend.notes_words import Token

STRONG_MEASURES = ("measur", "clock", "observ", "timed", "benchmark")
SPEED = re.compile(
    r"(half|a third|a quarter|one third|one quarter|2 ?x slower|\d+(?:\.\d+)? ?(?:%|percent))(?: of)?"
    r"(?: the| its| their| what)?(?: \w+)? ?(?:speed|bandwidth|rate|nominal|line|spec|peak|capacity|"
    r"advertised|rated|throughput|performance|as fast|catalogue|datasheet|$)"
)
REACHED = ("reach", "achieve")
FRACTIONS = {"half": 0.5, "a third": 1 / 3, "one third": 1 / 3, "a quarter": 0.25, "one quarter": 0.25}


def read_fact(clause: Clause, findings: Findings) -> bool:
    """Whether the clause is about one of these; what it states is added to the findings."""
    topics = (_step_time, _changes, _checkpoint, _oversubscription, _domain, _memory, _link)
    return any(topic(findings, clause) for topic in topics)


def _step_time(findings: Findings, clause: Clause) -> bool:
    times, rates = clause.of("time"), clause.of("token_rate")
    measured = any(str(token.value).startswith(STRONG_MEASURES) for token in clause.of("measure"))
    if not (times and (clause.of("step") or measured)) and not rates:
        return bool(times and clause.of("measure"))
    not_now = clause.of("target", "neg", "max", "min", "lt", "gt", "soft", "field")
    if clause.requires or not_now or len(times) + len(rates) > 1:
        return True
    figure, unit = _figure_and_unit((times or rates)[0])
    if figure > 0:
        findings.state(clause, "measured_step_time_s", "=", figure, unit)
    return True


def _changes(findings: Findings, clause: Clause) -> bool:
    counted = [token for token in clause.of("changes") if str(token.value).startswith(("one ", "a single "))]
    numbers = clause.of("number")
    only = any(token.value in ("only", "just", "please") for token in clause.of("req"))
    limited = only or clause.of("max") or (clause.of("neg") and clause.of("gt"))
    if "chang" not in clause.sentence.text or not clause.of("changes") or clause.fields or not limited:
        return False
    limit = numbers[0].number if numbers else 1.0
    if len(numbers) + len(counted) == 1 and limit.is_integer():
        findings.state(clause, "max_changes", "<=", int(limit))
    return True


def _checkpoint(findings: Findings, clause: Clause) -> bool:
    if "checkpoint" not in clause.sentence.kinds or clause.group & {"field", "value"}:
        return False
    words = [str(token.value) for token in clause.of("checkpoint", "keep")]
    named = any(part in word for word in words for part in ("layout", "format", "compat", "shard"))
    wanted = clause.of("keep", "req", "neg") or "able to" in clause.text
    if not (clause.of("layout") or named) or not wanted or "past_verb" in clause.kinds:
        return False
    if findings.scenario.plan is not None:
        findings.state(clause, "keep_checkpoint_layout", "keep", True)
    return True


def _oversubscription(findings: Findings, clause: Clause) -> bool:
    ratios = clause.of("ratio")
    numbers = clause.of("number") if clause.of("oversub") else []
    links = ("spine", "leaf", "fabric", "uplink", "switch", "network", "ib")
    network = any(str(token.value).startswith(links) for token in clause.of("inter_link"))
    if not clause.of("oversub", "full_bisection") and not (ratios and network):
        return False
    if clause.of("full_bisection"):
        topology = findings.scenario.cluster.topology
        if topology and topology.oversubscription != 1:
            findings.state(clause, "oversubscription", "=", 1)
    elif not clause.of("neg", "past_verb") and len(ratios) + len(numbers) == 1:
        value = _ratio(ratios[0]) if ratios else numbers[0].number
        if value >= 1:
            findings.state(clause, "oversubscription", "=", value, ":1")
    return True


def _domain(findings: Findings, clause: Clause) -> bool:
    numbers = clause.of("number")
    if not clause.of("domain") or clause.of("field", "rate", "gigabytes", "node", "neg", "past_verb"):
        return False
    if len(numbers) == 1 or (not numbers and "pairs" in clause.text):
        findings.state(clause, "nvlink_domain_size", "=", int(numbers[0].number) if numbers else 2)
    return True


def _memory(findings: Findings, clause: Clause) -> bool:
    percents, amounts = clause.of("percent"), clause.of("gigabytes")
    shares = [token for token in clause.of("number") if 0 < token.number < 1]
    is_memory, is_free = bool(clause.of("memory")), bool(clause.of("free_memory"))
    is_about = is_memory or (is_free and (percents or amounts))
    if clause.of("field", "inter_link", "intra_link") or not is_about:
        return False
    figures = percents or amounts or shares
    if len(figures) == 1 and "past_verb" not in clause.kinds:
        figure, unit = _figure_and_unit(figures[0])
        share = (figure / 100, None) if percents else (figure, unit or None)
        _memory_statement(findings, clause, *share, is_free)
    return True


def _memory_statement(
    findings: Findings, clause: Clause, figure: float, unit: str | None, is_free: bool
) -> None:
    kinds, text = clause.kinds, clause.text
    wants = clause.requires or bool(kinds & {"keep", "min"})
    named_cap = any(str(token.value).endswith(("cap", "limit", "budget")) for token in clause.of("memory"))
    caps = bool(kinds & {"max", "lt"}) or ("neg" in kinds and "gt" in kinds) or named_cap
    if not caps and ("neg" in kinds or ("describe" in kinds and not wants)):
        return
    is_usable = "usable" in kinds or re.search(r"\b(?:have|has|with) (?:only |just )?\d", text)
    if unit and is_usable:
        if not caps:
            findings.state(clause, "memory_gib", "=", figure, unit)
    elif is_free and not (caps and not wants and "max" in kinds):
        if wants or not re.search(r"\b(?:is|are|has|have|more|another|extra)\b", text):
            value = figure if unit else round(1 - figure, 6)
            findings.state(clause, "max_memory_fraction", "<=", value, f"{unit} free" if unit else None)
    elif caps or (wants and "gt" not in kinds):
        findings.state(clause, "max_memory_fraction", "<=", figure, unit)


def _link(findings: Findings, clause: Clause) -> bool:
    rates, speed = clause.of("rate"), SPEED.search(clause.text)
    inter = clause.of("inter_link") or ("instead" in clause.kinds and rates)
    intra = clause.of("intra_link", "domain")
    if clause.of("field") or not (inter or intra) or not (rates or clause.of("percent") or speed):
        return False
    name = "intra_node_gbytes_per_s_per_device" if intra else "inter_node_gbps_per_device"
    if clause.of("memory"):
        return True
    hoped = [token for token in clause.of("target") if not str(token.value).startswith(REACHED)]
    if hoped or clause.of("past_verb"):
        return True
    if rates:
        _rate(findings, clause, rates, name)
    elif (
        speed
        and not clause.of("neg")
        and not re.search(r"takes|spen[dt]|utili|busy|of the (?:step|time)", clause.text)
    ):
        word = speed.group(1)
        percent = re.match(r"\d+(?:\.\d+)?", word)
        ratio = 0.5 if "slower" in word else float(percent.group()) / 100 if percent else FRACTIONS[word]
        findings.state(clause, name, "=", round(ratio, 6), "of nominal")
    return True


def _rate(findings: Findings, clause: Clause, rates: Sequence[Token], name: str) -> None:
    first, others = rates[0], [token for token in rates[1:] if token.value != rates[0].value]
    instead = [token.start for token in clause.of("instead")]
    before = [token for token in clause.of("number") if instead and token.end <= min(instead) < first.start]
    if len(before) == 1:
        findings.state(clause, name, "=", before[0].number, _figure_and_unit(first)[1])
        return
    if any(place < first.start for place in instead) or (clause.of("neg", "gt", "lt") and not instead):
        return
    if others and not any(first.end <= place <= others[0].start for place in instead):
        findings.ask(clause, name, "which of these rates holds?")
    elif clause.of("per_node"):
        findings.ask(clause, name, "how much is that per device, one direction?")
    else:
        figure, unit = _figure_and_unit(first)
        findings.state(clause, name, "=", figure, unit)


def _figure_and_unit(token: Token) -> tuple[float, str]:
    match = re.match(r"(\d+(?:\.\d+)?) ?(.*)", str(token.value))
    if match is None:
        return 0.0, ""
    figure, unit = float(match.group(1)), match.group(2).strip()
    return (int(figure) if figure.is_integer() else figure), unit


def _ratio(token: Token) -> float:
    figures = [float(figure) for figure in re.findall(r"\d+(?:\.\d+)?", str(token.value))]
    return max([*figures, 1.0])
