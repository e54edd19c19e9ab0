"""What a format is, and the first look at a file whose format is to be found.

A framework is one file here: its subclass of `Format` recognises, reads and writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from tools.errors import InputError
from tools.frameworks.exporting import ExportJob, Setting, SettingsTree
from tools.frameworks.importing import Draft, ImportOptions
from tools.frameworks.python_config import looks_like_python
from tools.frameworks.reading import Notation, SettingsReader, check_length, flatten, parse_text
from tools.frameworks.shell import has_options, parse_arguments

Keys = frozenset[str]

LIKELY = 1
"""The file has settings that other formats have too."""
SURE = 2
"""The file has settings that only this format has."""
OTHER_KINDS = {
    "verification_index": "a verification card of Megatron-Bridge",
    "apiVersion": "a Kubernetes manifest",
    "services": "a compose file",
    "jobs": "a workflow of GitHub Actions",
    "_class_name": "a diffusion model",
    "tokenizer_class": "a tokenizer's configuration",
    "added_tokens": "a tokenizer",
    "weight_map": "an index of weights",
    "actor_rollout_ref": "a run of verl, which trains several models (RL)",
}
"""Files that are often given by mistake, by a key that only they have."""
OTHER_LAUNCHERS = {
    "llamafactory-cli": "LLaMA-Factory, whose YAML is read",
    **dict.fromkeys(("swift sft", "swift pt", "swift rlhf", "swift export", "swift infer"), "ms-swift"),
    **dict.fromkeys(("megatron sft", "megatron pt", "megatron rlhf", "swift/cli"), "ms-swift"),
    "verl.trainer": "verl (RL)",
    "primus-cli": "Primus, whose YAML is read",
}
"""What a script starts that is not read, by a mark of it."""


@dataclass(frozen=True, slots=True)
class UnknownFile:
    """A text as far as it must be understood to tell its format."""

    text: str
    kind: Notation | Literal["python", "script", "JSON with comments"]
    keys: Keys = frozenset()
    """Names of its outermost settings, with underscores."""
    sections: Mapping[str, Keys] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> "UnknownFile":
        """InputError says what the file is, if it is no configuration."""
        start = text.lstrip()[:1]
        check_length(text, is_json=start == "{")
        if looks_like_python(text):
            return cls(text, "python")
        if start == "{":
            try:
                return cls._with_settings(text, "JSON")
            except InputError:
                return cls._with_settings(text, "JSON with comments")
        if "\ndef " in text and "import " in text:
            rule = "only configuration functions of torchtitan and Megatron-Bridge are read"
            raise InputError("text", "a Python file", rule)
        if start == "[" or any(
            line.startswith("[") and line.rstrip().endswith("]") for line in text.splitlines()
        ):
            return cls._with_settings(text, "TOML")
        try:
            return cls._with_settings(text, "YAML")
        except InputError:
            if not has_options(text):
                raise
            return cls(text, "script")

    @classmethod
    def _with_settings(
        cls, text: str, kind: Literal["TOML", "JSON", "YAML", "JSON with comments"]
    ) -> "UnknownFile":
        values = parse_text(text, "YAML" if kind == "JSON with comments" else kind)
        sections = {
            key: frozenset(map(str, value)) for key, value in values.items() if isinstance(value, dict)
        }
        return cls(text, kind, frozenset(key.replace("-", "_") for key in values), sections)

    def has_any(self, *keys: str) -> bool:
        return not self.keys.isdisjoint(keys)

    def section(self, name: str) -> Keys:
        return self.sections.get(name, frozenset())

    @property
    def summary(self) -> str:
        """What it is, for a message about a file that no format recognises."""
        if self.kind == "script":
            return "a script without options of Megatron-LM or TRL"
        names = ", ".join(sorted(self.keys)[:5])
        return f"TOML with {names}" if self.kind == "TOML" else f"settings like {names}"


class Format:
    """How one kind of configuration file is recognised, read and, if it has a file name, written."""

    name: str
    aliases: tuple[str, ...] = ()
    """Names of frameworks whose format has another."""
    reads: str
    """What is read, for help."""
    framework: str | None = None
    """Whose rules a plan must obey to be written; None: depends on the plan, or on the file."""
    writes: str = ""
    """What is written, for help."""
    file_name: str = ""
    """Empty if nothing is written."""
    judged_by: str = ""
    """Whose own code takes what is written, in tests/integration/export."""
    has_levers: bool = False
    """Whether it writes the framework's levers."""
    says: tuple[str, ...] = ()
    """The fields of `training` that it writes beside the levers, or has a note on."""
    carries: tuple[str, ...] = ()
    """The plan fields that are not searched and that it can say."""

    def certainty(self, file: UnknownFile) -> int:
        """0, LIKELY or SURE."""
        raise NotImplementedError

    def read(self, text: str, options: ImportOptions) -> Draft:
        return self.read_settings(SettingsReader(parse_text(text, "YAML"), self.name), options)

    def read_settings(self, settings: SettingsReader, options: ImportOptions) -> Draft:
        """From a file that was parsed elsewhere."""
        raise NotImplementedError

    is_flat: bool = False
    """Whether its names are unique without the sections that they stand in."""

    def settings(self, job: ExportJob, names: Keys) -> SettingsTree:
        """What a plan decides, by dotted names, as a file with these names spells it."""
        text, _ = self.write(job)
        if self.file_name.endswith(".sh"):
            arguments = parse_arguments(text).items()
            return {name: int(value) if str(value).isdigit() else value for name, value in arguments}
        notations: dict[str, Notation] = {"toml": "TOML", "json": "JSON"}
        notation = notations.get(self.file_name.rpartition(".")[2], "YAML")
        return {name: cast(Setting, value) for name, value in flatten(parse_text(text, notation))}

    def framework_of(self, job: ExportJob) -> str | None:
        """The framework that runs the plan."""
        return self.framework

    def write(self, job: ExportJob) -> tuple[str, tuple[str, ...]]:
        """The text, and notes on what it leaves open; InputError for a plan that it cannot express."""
        raise NotImplementedError
