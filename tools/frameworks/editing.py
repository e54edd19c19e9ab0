"""Changes single settings of a configuration in place: every other character of the text stays as it is.

A text is edited by the places of its settings, found anew after each change. A script or a Python file may
state a setting several times, or by a variable: that place is taken whose change is read back.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, cast

import yaml
from pydantic import JsonValue

from tools.errors import InputError
from tools.frameworks import python_config
from tools.frameworks.exporting import Setting, SettingsTree
from tools.frameworks.format import UnknownFile
from tools.frameworks.python_config import parse_python
from tools.frameworks.reading import flatten, parse_text
from tools.frameworks.shell import LIST_OPTIONS, parse_arguments, substitute

Kind = Literal["YAML", "JSON", "TOML", "python", "script"]

_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]")
_ROW = re.compile(r"^\s*([\w.-]+)\s*=\s*(\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n]*\]|[^#\n]*?)[ \t]*(?:#.*)?$", re.M)
_WORD = r"\"[^\"\n]*\"|'[^'\n]*'|\$\(\([^\n]*?\)\)|\$\{[^{}\n]*\}|[^\s\\\"'()#-][^\s\\\"'()]*"
_OPTION = re.compile(rf"(?:^|(?<=[\s\"'(=]))--([A-Za-z][\w.-]*)(?:(?:=|[ \t]+)({_WORD})?)?", re.M)
_MORE_WORDS = re.compile(r"(?:[ \t]+[a-z]\w*)*")
_ASSIGNED = r"^[ \t]*(?:(?:export|local|readonly|declare)[ \t]+)?{}=(\"[^\"\n]*\"|'[^'\n]*'|[^\s;#]*)"
_VARIABLE = re.compile(r"[\"']?\$(?:\{(\w+)(?::?[-=]([^{}$]*))?\}|(\w+))[\"']?")
_LAST_NAME = re.compile(r"[A-Za-z_][\w-]*(?=[\"']?$)")


@dataclass(frozen=True, slots=True)
class Place:
    """A setting or a section in the text, from its key to the end of its value."""

    name: str
    start: int
    key_end: int
    value_start: int
    end: int
    has_comma: bool = False
    """Whether commas part it from its neighbours."""
    is_section: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a configuration as its settings by name."""

    text: str
    kind: Kind
    is_flat: bool = False
    """Settings are unique without their sections, and a dash is an underscore."""
    variables: Mapping[str, str] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str, is_flat: bool, variables: Mapping[str, str]) -> "Document":
        kind = UnknownFile.of(text).kind
        return cls(text, "YAML" if kind == "JSON with comments" else kind, is_flat, variables)

    def values(self) -> SettingsTree:
        """What is read, by the names of the places."""
        variables = self.variables or {}
        if self.kind == "script":
            return dict(parse_arguments(self.text, variables))
        if self.kind == "python":
            found: Mapping[str, JsonValue] = {
                **parse_python(self.text, variables.get(python_config.VARIABLE)).sections
            }
        else:
            found = parse_text(substitute(self.text, variables), self.kind)
        return {self.named(name): cast(Setting, value) for name, value in flatten(found)}

    def named(self, name: str) -> str:
        leaf = name.rpartition(".")[2].lstrip("-").replace("-", "_")
        return leaf if self.is_flat or self.kind == "script" else name

    def places(self) -> list[Place]:
        finders: dict[Kind, Callable[[str], Iterator[Place]]] = {
            "YAML": _nodes, "JSON": _nodes, "TOML": _rows, "python": _arguments, "script": _options,
        }  # fmt: skip
        return list(finders[self.kind](self.text))

    def with_text(self, text: str, *notes: str) -> "Document":
        return replace(self, text=text, notes=(*self.notes, *notes))

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def change(self, name: str, value: Setting) -> "Document":
        """With another value of a setting that the text states; InputError names the line otherwise."""
        found = [place for place in self.places() if self.named(place.name) == name and not place.is_section]
        tried = list[tuple[int, int]]()
        for place in reversed(found):
            whole, sources = (place.value_start, place.end), self._sources(place.value_start, place.end)
            is_outside = all(self._is_plain(*span) for span in sources)
            tried += [*sources, *([whole] if is_outside and whole not in sources else [])]
        for start, end in tried:
            new, old = self._written(value, start, end), self.text[start:end]
            if (
                name == f"{python_config.RECOMPUTATION}.mode"
                and self.kind == "python"
                and old[0] not in "'\""
            ):
                call = next((call for call, mode in python_config.MODES.items() if mode == value), "")
                new = "None" if value == "none" else f"{call}.Config()" if call in self.text else old
            note = [f"line {self.line(start)}: {name} no longer depends on {old}"] if "$" in old else []
            changed = self.with_text(self.text[:start] + new + self.text[end:], *note)
            if name in (read := changed.values()) and is_same(read[name], value):
                return changed
        start, end = next(
            (span for span in tried if not self._is_plain(*span)), tried[-1] if tried else (0, 0)
        )
        line = f"line {self.line(start)}" if tried else "text"
        rule = f"is not a value that can be replaced; change it by hand so that {name} becomes {value}"
        raise InputError(line, self.text[start:end] or name, rule)

    def _is_plain(self, start: int, end: int) -> bool:
        """Whether it is a value or a variable; what is computed depends on more than this setting."""
        old = self.text[start:end]
        return self.kind != "script" or not ("$" in old or "`" in old) or bool(_VARIABLE.fullmatch(old))

    def _sources(self, start: int, end: int, depth: int = 3) -> list[tuple[int, int]]:
        """The spans that decide a value: itself, or what is assigned to its variable in a script."""
        match = _VARIABLE.fullmatch(self.text, start, end) if self.kind == "script" else None
        if match is None or not depth:
            return [(start, end)]
        assigned = re.finditer(_ASSIGNED.format(match[1] or match[3]), self.text, re.M)
        spans = [part for each in assigned for part in self._sources(*each.span(1), depth - 1)]
        default = [match.span(2)] if match[2] else []
        return [*reversed(spans), *default] or [(start, end)]

    def _written(self, value: Setting, start: int, end: int) -> str:
        old = self.text[start:end]
        if not self._is_plain(start, end):
            return old
        if self.kind in ("JSON", "TOML"):
            return json.dumps(value)
        if self.kind == "python":
            return repr(value)
        word = str(value)
        if self.kind == "YAML" and (value is None or isinstance(value, bool)):
            word = "null" if value is None else word if old in ("True", "False") else word.lower()
        elif self.kind == "YAML" and isinstance(value, str):
            word = yaml.safe_dump(value).partition("\n")[0]  # `no` must be quoted
        quote = old[:1] if old[:1] in ("'", '"') and "$" not in old else ""
        gap = " " if self.text[start - 1 : start] == ":" else ""
        return f"{gap}{word if word[:1] == quote else quote + word + quote}"

    def add(self, name: str, value: Setting, siblings: list[str]) -> "Document":
        """With a setting that the text does not state yet, next to the first of its siblings."""
        places, section = self.places(), name.rpartition(".")[0]
        if not section or self.kind == "script":
            wanted = [self.named(sibling) for sibling in siblings]
            near = [place for place in places if self.named(place.name) in wanted and not place.is_section]
            near.sort(key=lambda place: wanted.index(self.named(place.name)))
            missing: list[str] = []
            anchors = near or [place for place in places if not place.is_section]
        else:
            missing, anchors = [], list[Place]()
            while not anchors:
                level = f"{section}." if section else ""
                anchors = [
                    place for place in places
                    if place.name.startswith(level) and "." not in place.name[len(level) :]
                ]  # fmt: skip
                anchors.sort(key=lambda place: (place.name in siblings, place.start), reverse=True)
                if not anchors and not section:
                    break
                if not anchors:
                    section, _, part = section.rpartition(".")
                    missing.insert(0, part)
        leaf = name.rpartition(".")[2]
        if self.kind == "TOML" and (missing or not anchors):
            end = "" if self.text.endswith("\n") else "\n"
            row = f"[{name.rpartition('.')[0]}]\n{leaf} = {json.dumps(value)}\n"
            return self.with_text(f"{self.text}{end}\n{row}")
        routes = [(anchor, [*missing, leaf]) for anchor in anchors]
        if self.kind == "python":  # `parallelism=ParallelismConfig(...)`, beside the other sections
            routes = [] if missing else routes
            routes += [(place, [*name.split(".")]) for place in places if place.is_section]
        for anchor, keys in routes:
            changed = self._after(anchor, keys, value)
            read = changed.values()
            if self.named(name) in read and is_same(read[self.named(name)], value):
                return changed
        rule = f"the text has no place for it: state {name} = {value} by hand"
        raise InputError("text", name, rule)

    def _after(self, anchor: Place, keys: list[str], value: Setting) -> "Document":
        text = self.text
        line_start, line_end = text.rfind("\n", 0, anchor.start) + 1, text.find("\n", anchor.end)
        line_end = len(text) if line_end < 0 else line_end
        indent, rest = text[line_start : anchor.start], text[anchor.end : line_end].strip()
        joint = text[anchor.key_end : anchor.value_start]
        if "\n" in joint or anchor.is_section or not joint.strip() or self.kind == "YAML":
            joint = {"script": " ", "python": "=", "TOML": " = "}.get(self.kind, ": ")
        old = text[anchor.start : anchor.key_end]
        *outer, leaf = (key.replace("_", "-") if "-" in old.lstrip("-") else key for key in keys)
        key = _LAST_NAME.sub(leaf, old)
        is_flag = self.kind == "script" and value is True
        new = key if is_flag else f"{key}{joint}{self._written(value, 0, 0)}"
        for depth, section in enumerate(reversed(outer)):  # sections that the text does not have
            name = _LAST_NAME.sub(section, old)
            if self.kind == "python":
                calls = (call for call, made in python_config.SECTIONS.items() if made == section)
                new = f"{name}={next((call for call in calls if call in text), '')}({new})"
                continue
            inner = f"\n{indent}{'  ' * (len(outer) - depth)}{new}"
            new = f"{name}: {{{new}}}" if anchor.has_comma else f"{name}:{inner}"
        if indent.strip():
            return self.with_text(
                f"{text[: anchor.end]}{', ' if anchor.has_comma else ' '}{new}{text[anchor.end :]}"
            )
        before, after = f"\n{indent}{new}", ""
        at = line_end
        if anchor.has_comma:
            before, at = (f"{before},", line_end) if rest.startswith(",") else (f",{before}", anchor.end)
        elif self.kind == "script" and rest == "\\":
            after = " \\"
        elif self.kind == "script" and not rest.startswith("#"):
            if rest.strip("\"')"):
                before = f" {new}"
            elif text[:line_start].rstrip(" \n").endswith("\\"):
                before = f" \\{before}"
            at = anchor.end
        return self.with_text(f"{text[:at]}{before}{after}{text[at:]}")

    def remove(self, name: str) -> "Document":
        """Without a setting, however often the text states it."""
        changed = self
        for place in reversed([place for place in self.places() if self.named(place.name) == name]):
            changed = changed._without(place)
        return changed

    def _without(self, place: Place) -> "Document":
        text = self.text
        line_start, line_end = text.rfind("\n", 0, place.start) + 1, text.find("\n", place.end)
        line_end = len(text) if line_end < 0 else line_end
        rest, head, tail = text[place.end : line_end].strip(), text[: place.start], text[place.end :]
        is_last = not rest.startswith((",", "\\"))
        is_first = not head[line_start:].strip()
        is_line = is_first and (rest in ("", ",", "\\") or rest.startswith("#"))
        if is_line:
            head, tail = text[:line_start], text[line_end + 1 :]
        elif not is_last and place.has_comma:
            tail = tail.lstrip()[1:].lstrip(" ")
        elif is_first:
            tail = tail.lstrip(" ")
        else:
            head = head.rstrip(" ")
        if is_last and place.has_comma:
            before = head.rstrip()
            head = before.removesuffix(",") + head[len(before) :]
        elif is_last and is_line and self.kind == "script" and head.endswith("\\\n"):
            head = head[:-2].rstrip(" ") + "\n"
        return self.with_text(head + tail)


def is_same(read: Setting, value: Setting) -> bool:
    """Argument files have no types."""
    return str(read).lower() == str(value).lower()


def _nodes(text: str) -> Iterator[Place]:
    """YAML, and JSON as a part of it; a tab is a blank of the same width."""

    def end_of(node: yaml.Node) -> int:
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            return end_of(last[1] if isinstance(last, tuple) else last)
        return (
            len(text[: node.end_mark.index].rstrip())
            if node.end_mark.index > node.start_mark.index
            else node.end_mark.index
        )

    def inside(node: yaml.MappingNode, prefix: str) -> Iterator[Place]:
        for key, value in node.value:
            name, is_section = (
                f"{prefix}{key.value}",
                isinstance(value, yaml.MappingNode) and bool(value.value),
            )
            start, end = value.start_mark.index, end_of(value)
            if not end > start:  # no value: `key:`
                start = end = text.index(":", key.end_mark.index) + 1
            ends = (key.start_mark.index, key.end_mark.index, start, end)
            yield Place(name, *ends, has_comma=bool(node.flow_style), is_section=is_section)
            if is_section:
                yield from inside(value, f"{name}.")

    root = yaml.compose(text.replace("\t", " "), yaml.SafeLoader)
    if isinstance(root, yaml.MappingNode):
        yield from inside(root, "")


def _rows(text: str) -> Iterator[Place]:
    """The one-line settings of TOML."""
    tables = [(match.start(), match[1].strip()) for match in re.finditer(_TABLE.pattern, text, re.M)]
    for match in _ROW.finditer(text):
        table = next((name for start, name in reversed(tables) if start < match.start(1)), "")
        name = f"{table}.{match[1]}" if table else match[1]
        yield Place(name, match.start(1), match.end(1), match.start(2), match.end(2))


def _options(text: str) -> Iterator[Place]:
    """The options of a script outside comments; its variables stay as they are."""
    for match in _OPTION.finditer(re.sub(r"(?m)(?:^|(?<=\s))#.*$", lambda note: " " * len(note[0]), text)):
        start, end = match.span(2) if match[2] else (match.end(1), match.end(1))
        if match[1].replace("-", "_") in LIST_OPTIONS and (more := _MORE_WORDS.match(text, end)):
            end = more.end()
        yield Place(match[1], match.start(), match.end(1), start, end)


def _arguments(text: str) -> Iterator[Place]:
    """Keywords of configuration classes, and fields that are assigned."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))

    def at(line: int, column: int) -> int:  # ast counts bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def span(node: ast.expr) -> tuple[int, int]:
        return at(node.lineno, node.col_offset), at(node.end_lineno or 0, node.end_col_offset or 0)

    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
            name = ast.unparse(node.targets[0]).partition(".")[2]
            yield Place(name, *span(node.targets[0]), *span(node.value))
        if not isinstance(node, ast.Call):
            continue
        for item in node.keywords:
            start, value = at(item.lineno, item.col_offset), item.value
            places = (start, start + len(item.arg or ""), *span(value))
            own = (
                python_config.SECTIONS.get(python_config.called(value.func))
                if isinstance(value, ast.Call)
                else ""
            )
            if section := python_config.SECTIONS.get(python_config.called(node.func)):
                yield Place(f"{section}.{item.arg}", *places, has_comma=True)
            elif own and item.arg == own:
                yield Place(own, *places, has_comma=True, is_section=True)
            if item.arg == python_config.RECOMPUTATION:
                yield Place(f"{item.arg}.mode", *places, has_comma=True)
