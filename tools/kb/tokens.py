"""From text to the terms that lexical search compares.

Made for this field's words: NCCL_ALGO, ZeRO-3, all-to-all and --tensor-model-parallel-size are each one
term and also their parts, however they are joined or capitalised (all-reduce = AllReduce = all_reduce);
a spelt-out name counts as its short form too (tensor parallelism = tp). Endings are cut lightly.
"""

import re
from functools import cache, lru_cache
from itertools import pairwise

_WORD = re.compile(r"[a-z0-9]+(?:[-_./][a-z0-9]+)*")
_JOINT = re.compile(r"[-_./]")
_JOINT_OF_NUMBERS = re.compile(r"[-_/]")
_CAMEL = re.compile(r"[A-Z](?<=[a-z].)(?=[a-z])")
# Names that would fall apart into words which say nothing and are dropped.
_SPACED = ("all reduce", "all gather", "all to all", "out of memory", "mixture of experts")
_SAME = {"outofmemory": "oom", "mixtureofexperts": "moe"}
_STOP = """
a about after all also an and any are as at be been before but by can do does each every few for
from has have how if in into is it its less like many may more most much no not of off on one
only or other our out over per set so some such than that the their them then there these they
this those to too under up us use used using very was we were what when where which while who
why will with would you your
"""
_SHORT_FORMS = {
    "tensor parallel": "tp", "pipeline parallel": "pp", "context parallel": "cp", "expert parallel": "ep",
    "data parallel": "dp", "sequence parallel": "sp", "virtual pipeline": "vpp",
    "interleaved pipeline": "vpp", "interleaved schedule": "vpp", "fully sharded": "fsdp",
    "activation checkpointing": "recompute", "gradient checkpointing": "recompute",
    "micro batch": "microbatch", "reduce scatter": "reducescatter",
}  # fmt: skip
# Searched from the shortest stem on, so the longest ending is found.
_ENDING = re.compile("(?:i[zs]ations?|i[zs]ing|i[zs]e[ds]?|ations?|ings?|isms?|ies|es|ed|e|(?<!s)s|y)$")
_SHORTEST_STEM = 4
_DOUBLED = tuple(letter * 2 for letter in "bdgmnprt")


def tokenize(text: str) -> list[str]:
    """The terms of a text in order, repetitions kept; short forms of spelt-out names follow at the end."""
    plain = _CAMEL.sub(r"-\g<0>", text).lower()
    for name in _SPACED:
        plain = plain.replace(name, name.replace(" ", "-"))
    terms = [term for word in _WORD.findall(plain) for term in _terms_of(word)]
    short_forms = _short_forms()
    return terms + [short_forms[pair] for pair in pairwise(terms) if pair in short_forms]


@lru_cache(maxsize=65536)
def _terms_of(word: str) -> tuple[str, ...]:
    """The whole word without its joints, and its parts where it has any; of numbers the parts alone."""
    if word.isalnum():
        return (_stem(word),) if _says_something(word) else ()
    parts = _JOINT.split(word)
    if all(part.isdigit() for part in parts):
        return tuple(number for number in _JOINT_OF_NUMBERS.split(word) if _says_something(number))
    whole = "".join(parts)
    return (_SAME.get(whole) or _stem(whole), *(_stem(part) for part in parts if _says_something(part)))


def _says_something(word: str) -> bool:
    return len(word) > 1 and word not in _stop_words()


def _stem(word: str) -> str:
    """Without its ending, where enough remains: shards, sharded and sharding are one term."""
    found = _ENDING.search(word, _SHORTEST_STEM)
    if not found:
        return word
    stem = word[: found.start()]
    return stem[:-1] if stem.endswith(_DOUBLED) else stem


@cache
def _stop_words() -> frozenset[str]:
    return frozenset(_STOP.split())


@cache
def _short_forms() -> dict[tuple[str, str], str]:
    spelt = ((names.split(), short) for names, short in _SHORT_FORMS.items())
    return {(_stem(first), _stem(second)): _stem(short) for (first, second), short in spelt}
