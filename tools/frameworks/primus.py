"""AMD Primus: reads the YAML of its runs, which chooses a backend, its settings and a model.

The settings and the model are files of its checkout (primus/configs of AMD-AGI/Primus), each of which may
extend others; the later of two wins, and what the run overrides wins over all.
"""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import replace

from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks.automodel import Automodel
from tools.frameworks.exporting import ExportJob, SettingsTree
from tools.frameworks.format import SURE, Format, Keys, UnknownFile
from tools.frameworks.importing import Draft, ImportOptions, missing
from tools.frameworks.maxtext import MaxText
from tools.frameworks.megatron import OTHER_PROGRAMS, Megatron
from tools.frameworks.reading import SettingsReader, flatten, parse_text
from tools.frameworks.torchtitan import Torchtitan

BACKENDS = {
    "megatron": Megatron(), "torchtitan": Torchtitan(), "maxtext": MaxText(), "nemo_automodel": Automodel(),
}  # fmt: skip
BY_CHECKOUT = {
    "micro_batch_size": "plan.micro_batch_size",
    "global_batch_size": "training.global_batch_size",
    "expert_model_parallel_size": "plan.ep",
}
"""Megatron's settings that the files of the checkout may decide."""
MAX_EXTENDED = 8
FlatSettings = Mapping[str, JsonValue]
"""By dotted names, so that the later of two wins setting by setting."""
_VARIABLE = re.compile(r"\$\{(\w+):([^{}]*)\}")


class Primus(Format):
    name = "primus"
    reads = "AMD Primus runs, with the files of their checkout"

    def certainty(self, file: UnknownFile) -> int:
        return SURE if "modules" in file.keys and "framework:" in file.text else 0

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        rule = "the file chooses a backend and changes its settings; 'asap export' writes the backend's names"
        raise InputError("text", "a Primus run", rule)

    def read(self, text: str, options: ImportOptions) -> Draft:
        modules = parse_text(_with_variables(text, options.variables), "YAML").get("modules")
        run = next(iter(modules.values()), None) if isinstance(modules, dict) else None
        if not isinstance(run, dict):
            raise InputError("primus: modules", str(modules)[:40], "must have a trainer")
        framework = str(run.get("framework"))
        if framework not in BACKENDS or "diffusion" in str(run.get("model")):
            rule = f"not supported; allowed: {', '.join(BACKENDS)} with a language model"
            raise InputError("primus: framework", framework, rule)
        values: FlatSettings = {}
        absent = []
        for kind, folder in (("config", "modules"), ("model", "models")):
            name = run.get(kind)
            found = _extended(f"primus/configs/{folder}/{framework}/{name}", options) if name else {}
            absent += [str(name)] if found is None else []
            values = {**values, **(found or {})}
        overrides = run.get("overrides")
        own = dict(flatten(overrides)) if isinstance(overrides, dict) else {}
        values = {**values, **own}
        if absent and framework == "megatron":
            _refuse_open(values, absent, options)
        # The trainer's settings list every argument of Megatron-LM, those of other programs among them.
        values = {name: value for name, value in values.items() if name not in OTHER_PROGRAMS}
        backend = BACKENDS[framework]
        draft = backend.read_settings(SettingsReader(values, f"primus: {framework}"), options)
        unused = tuple(each for each in draft.unused if each.path in own)
        return replace(draft, framework=draft.framework or backend.framework, unused=unused)


def _with_variables(text: str, variables: Mapping[str, str]) -> str:
    """`${TEAM:amd}` is amd where nothing else is given."""
    return _VARIABLE.sub(lambda match: variables.get(match[1], match[2]), text)


def _extended(path: str, options: ImportOptions, depth: int = 0) -> FlatSettings | None:
    """A file of the checkout on top of what it extends; None if it is not at hand."""
    text = options.find_module(path)
    if text is None or depth > MAX_EXTENDED:
        return None
    values = parse_text(_with_variables(text, options.variables), "YAML")
    bases = values.pop("extends", None)
    found: FlatSettings = {}
    for base in bases if isinstance(bases, list) else [bases] if bases else []:
        inner = posixpath.normpath(posixpath.join(posixpath.dirname(path), str(base)))
        found = {**found, **(_extended(inner, options, depth + 1) or {})}
    return {**found, **dict(flatten(values))}


def _refuse_open(values: FlatSettings, absent: list[str], options: ImportOptions) -> None:
    """What a file of the checkout may set that is not at hand is not assumed."""
    stated = {name for name, _ in options.overrides}
    given = {"micro_batch_size": options.micro_batch_size, "global_batch_size": options.global_batch_size}
    for name, path in BY_CHECKOUT.items():
        is_asked = name != "expert_model_parallel_size" or options.is_moe({})
        if is_asked and values.get(name) is None and path not in stated and not given.get(name):
            raise missing(path, f"{', '.join(absent)} may set it: give the file inside its checkout")
