"""YAML text to nodes with line and column, within fixed bounds; scalars by the core schema of YAML 1.2.

The composer reads libyaml's events one by one: nothing recurses, and depth and size are checked before
anything is built. Deep nesting and %TAG directives, on which libyaml takes quadratic time, are rejected, and
so are infinity and NaN. `yes`, `no`, dates and `12:30` are text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from math import isinf
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from astromesh.config.base import Node, Place, Steps, format_path
from astromesh.config.environment import substitute
from astromesh.errors import InvalidManifest

NULLS = frozenset(("", "~", "null", "Null", "NULL"))
BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}
#: first characters of numbers and constants
_FIRST_CHARACTERS = frozenset("+-.0123456789~nNtTfF")
#: longer numbers are rejected without conversion
_MAX_DIGITS = 25
Scalar = str | int | float | bool | None


class NumberTooLarge(ValueError):
    """A number beyond 64 bits."""


class NotFinite(ValueError):
    """Infinity or NaN."""


def parse_scalar(text: str) -> Scalar:
    """Returns the value of a scalar without quotes.

    Raises:
        NumberTooLarge: it does not fit 64 bits.
        NotFinite: it is infinite or not a number, which JSON cannot represent.
    """
    if not text:
        return None
    if text[0] not in _FIRST_CHARACTERS:
        return text
    if text in NULLS:
        return None
    if text in BOOLEANS:
        return BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return parse_integer(text)
    if _NOT_FINITE.fullmatch(text):
        raise NotFinite
    return parse_float(text) if _FLOAT.fullmatch(text) else text


def parse_integer(text: str) -> int:
    """Parses an integer. Raises ValueError for other text, NumberTooLarge beyond 64 bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError("not a whole number")
    if len(text) > _MAX_DIGITS:
        raise NumberTooLarge
    base = _BASES.get(text[:2])
    value = int(text[2:], base) if base else int(text)
    if not -(2**63) <= value < 2**63:
        raise NumberTooLarge
    return value


def parse_float(text: str) -> float:
    """Parses a number. Raises ValueError for other text, NumberTooLarge beyond 64 bits."""
    if not _FLOAT.fullmatch(text):
        raise ValueError("not a number")
    value = float(text)
    if isinf(value):
        raise NumberTooLarge
    return value


def parse_boolean(text: str) -> bool:
    """Parses `true` or `false`. Raises ValueError for other text."""
    if text not in BOOLEANS:
        raise ValueError("neither true nor false")
    return BOOLEANS[text]


#: bytes of a file
MAX_BYTES = 1_048_576
#: faults of a file that are reported at once
MAX_FAULTS = 100
#: levels of nesting
MAX_DEPTH = 64
#: nodes, aliases expanded; a text counts one more for each 16 characters
MAX_WEIGHT = 100_000
_CHARACTERS_PER_WEIGHT = 16
#: messages for numbers that are rejected
NUMBER_FAULTS: dict[type[ValueError], str] = {
    NumberTooLarge: "must be a number of at most 64 bits",
    NotFinite: "must be a finite number",
}
_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
#: start of a libyaml message → hint
_HINTS = (
    ("mapping values are not allowed", "Check the indentation, and put text that contains ': ' in quotes."),
    ("cannot start any token", "Indent with spaces; put text that starts with a special sign in quotes."),
    ("did not find expected ',' or", "Is a comma, bracket or quote missing? Inside { } put ${…} in quotes."),
    ("could not find expected ':'", "Is a ':' missing, or the indentation wrong?"),
    ("did not find expected key", "Check the indentation of this line and the one above."),
    ("unexpected end of stream", "Is a closing quote missing?"),
)  # fmt: skip


class _ParseStopped(Exception):
    """The parser cannot continue."""

    def __init__(self, message: str, place: Place, hint: str = "") -> None:
        self.message, self.place, self.hint = message, place, hint
        super().__init__(message)


class Document:
    """One file as read.

    Args:
        file: its path in faults.
        text: the document as it was written.
        node: the document, or None where it cannot be read.
        faults: faults of the YAML itself.
    """

    __slots__ = ("faults", "file", "node", "text")

    def __init__(self, file: Path, text: str = "") -> None:
        self.file, self.text = file, text
        self.node: Node | None = None
        self.faults: list[InvalidManifest] = []

    def fault(self, message: str, place: Place, steps: Steps = (), hint: str = "") -> None:
        self.faults.append(manifest_fault(self.file, message, place, steps, hint, "unreadable"))


def manifest_fault(
    file: Path, message: str, place: Place = Place(), steps: Steps = (), hint: str = "", rule: str = ""
) -> InvalidManifest:
    """Creates a fault at a place of a file."""
    key = format_path(steps)
    return InvalidManifest(
        message, file=str(file), line=place.line, column=place.column, key=key, hint=hint, rule=rule
    )


def read_file(file: Path, env: Mapping[str, str]) -> Document:
    """Reads one file of YAML. Everything wrong with it is a fault of the document, never an exception."""
    document = read_text(file)
    return document if document.faults else parse_text(document.text, document, env)


def read_text(file: Path) -> Document:
    """Reads one file as text. Everything wrong with it is a fault of the document, never an exception."""
    document = Document(file)
    try:
        with open(file, "rb", opener=_open_nonblocking) as stream:
            if not S_ISREG(os.fstat(stream.fileno()).st_mode):
                document.fault("is not a regular file", Place())
                return document
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        document.fault(f"cannot be read: {error.strerror or error}", Place())
        return document
    if len(raw) > MAX_BYTES:
        document.fault(f"is larger than {MAX_BYTES} bytes", Place(1, 1))
        return document
    try:
        document.text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.fault("is not UTF-8 text", _place_after(raw[: error.start].decode(errors="replace")))
    return document


def _open_nonblocking(path: str, flags: int) -> int:
    """Opens a file without blocking, because it may be a pipe that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse_text(text: str, document: Document, env: Mapping[str, str] | None) -> Document:
    """Reads YAML text into the document.

    Args:
        env: Environment variables for `${NAME}`; None: such text stays as it is.
    """
    if directive := _TAG_DIRECTIVE.search(text):
        place = _place_after(text[: directive.start()])
        document.fault("%TAG directives are not supported", place, hint="Remove them.")
        return document
    composer = _Composer(document, env)
    try:
        composer.run(text)
    except _ParseStopped as stop:
        document.node = None
        document.fault(stop.message, stop.place, composer.path(), stop.hint)
    except yaml.YAMLError as error:
        document.node = None
        document.fault(*_yaml_fault(error, text))
    return document


def _place_after(before: str) -> Place:
    return Place(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _yaml_fault(error: yaml.YAMLError, text: str) -> tuple[str, Place, Steps, str]:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        context = f" {error.context}" if error.context else ""
        hint = next((hint for start, hint in _HINTS if start in error.problem), "")
        return f"is not valid YAML:{context}{',' if context else ''} {error.problem}", place, (), hint
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode()[: error.position].decode(errors="replace")
        return "is not valid YAML: control characters are not allowed", _place_after(before), (), ""
    return f"is not valid YAML: {error}", Place(1, 1), (), ""


class _Composer:
    """Builds the nodes of one document from events, with a stack of the open ones."""

    def __init__(self, document: Document, env: Mapping[str, str] | None) -> None:
        self._document = document
        self._env = env
        self._open: list[Node] = []
        #: for each open mapping the key whose value follows; for a list None
        self._keys: list[str | None] = []
        self._anchors: dict[str, Node] = {}
        self._weight = 0

    def path(self) -> Steps:
        """Returns the path of the current position in the document."""
        steps: list[str | int] = []
        for node, key in zip(self._open, self._keys, strict=True):
            if isinstance(node.value, list):
                steps.append(len(node.value))
            elif key is not None:
                steps.append(key)
        return tuple(steps)

    def run(self, text: str) -> None:
        parser = yaml.CSafeLoader(text)
        handlers: dict[type[yaml.Event], Callable[[Any], None]] = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: self._start,
            yaml.SequenceStartEvent: self._start,
            yaml.MappingEndEvent: self._end,
            yaml.SequenceEndEvent: self._end,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document_start,
        }
        while (event := parser.get_event()) is not None:
            if handler := handlers.get(type(event)):
                handler(event)
            if len(self._document.faults) >= MAX_FAULTS:
                raise _ParseStopped("has more faults. Fix these first.", _place_of_event(event))
        if self._document.node is None:
            raise _ParseStopped("is empty", Place(1, 1))

    def _document_start(self, event: yaml.Event) -> None:
        if self._document.node is not None:
            raise _ParseStopped(
                "a second document starts here; a file holds one document", _place_of_event(event)
            )

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        place = _place_of_event(event)
        if self._expects_key():
            self._key(event, place)
            return
        node = self._value(event, place)
        self._anchor(event, node)
        self._add(node)

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        place = _place_of_event(event)
        if self._expects_key():
            raise _ParseStopped("a key must be text", place)
        self._refuse_tag(event, place)
        if len(self._open) >= MAX_DEPTH:
            raise _ParseStopped(f"is nested more than {MAX_DEPTH} levels deep", place)
        node = Node([] if isinstance(event, yaml.SequenceStartEvent) else {}, place)
        self._anchor(event, node)
        self._count(1, place)
        self._open.append(node)
        self._keys.append(None)

    def _end(self, event: yaml.Event) -> None:
        node = self._open.pop()
        self._keys.pop()
        node.height = 1 + max((child.height for child in node.entries.values()), default=0)
        node.weight = 1 + sum(child.weight for child in node.entries.values())
        self._add(node)

    def _alias(self, event: yaml.AliasEvent) -> None:
        place = _place_of_event(event)
        node = self._anchors.get(event.anchor or "")
        if self._expects_key():
            raise _ParseStopped("a key must be text", place)
        if node is None:
            raise _ParseStopped(f"the alias *{event.anchor} has no anchor &{event.anchor} above it", place)
        if any(node is above for above in self._open):
            raise _ParseStopped(f"the alias *{event.anchor} is inside its own anchor", place)
        if len(self._open) + node.height > MAX_DEPTH:
            raise _ParseStopped(f"is nested more than {MAX_DEPTH} levels deep", place)
        self._count(node.weight, place)
        self._add(node)

    def _expects_key(self) -> bool:
        return bool(self._open) and self._keys[-1] is None and isinstance(self._open[-1].value, dict)

    def _key(self, event: yaml.ScalarEvent, place: Place) -> None:
        """Reads a key, which is always text, even `1`, `on` and `null`."""
        self._refuse_tag(event, place)
        key: str = event.value
        if event.implicit[0] and key in ("", "<<"):
            raise _ParseStopped("a key is missing" if not key else "merge keys (<<) are not supported", place)
        self._count(1 + len(key) // _CHARACTERS_PER_WEIGHT, place)
        mapping = self._open[-1]
        if (first := mapping.keys.get(key)) is not None:
            message = f"duplicate key `{key}`, first in line {first.line}, column {first.column}"
            self._document.fault(message, place, (*self.path(), key), "Remove one of them.")
        mapping.keys.setdefault(key, place)
        self._keys[-1] = key

    def _add(self, node: Node) -> None:
        if not self._open:
            self._document.node = node
            return
        parent, key = self._open[-1], self._keys[-1]
        if key is None:
            parent.entries[len(parent.value)] = node
            parent.value.append(node.value)
        else:
            parent.entries[key] = node
            parent.value[key] = node.value
            self._keys[-1] = None

    def _value(self, event: yaml.ScalarEvent, place: Place) -> Node:
        text: str = event.value
        if event.tag is not None and event.tag not in _TEXT_TAGS:
            self._refuse_tag(event, place)
        if "${" in text and self._env is not None:
            return self._substituted(event, place, self._env)
        node = Node(text, place, 1 + len(text) // _CHARACTERS_PER_WEIGHT)
        self._count(node.weight, place)
        node.literal = event.style == "|"
        if event.implicit[0]:
            try:
                node.value = parse_scalar(text)
            except (NumberTooLarge, NotFinite) as error:
                self._document.fault(NUMBER_FAULTS[type(error)], place, self.path(), "Put text in quotes.")
        return node

    def _substituted(self, event: yaml.ScalarEvent, place: Place, env: Mapping[str, str]) -> Node:
        """Substitutes variables. The result stays text until a field asks for a number or a boolean."""
        result = substitute(event.value, env)
        node = Node(result.text, place, 1 + len(result.text) // _CHARACTERS_PER_WEIGHT)
        self._count(node.weight, place)
        node.literal = event.style == "|"
        node.variables = result.variables
        for wrong in result.faults:
            line = place.line + 1 + event.value.count("\n", 0, wrong.offset)
            at = Place(line, 1) if node.literal else place
            self._document.fault(wrong.message, at, self.path(), wrong.hint)
        return node

    def _anchor(self, event: yaml.NodeEvent, node: Node) -> None:
        if event.anchor is not None:
            self._anchors[event.anchor] = node

    def _refuse_tag(self, event: yaml.NodeEvent, place: Place) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TEXT_TAGS:
            raise _ParseStopped(f"the tag {tag} is not supported", place)

    def _count(self, weight: int, place: Place) -> None:
        self._weight += weight
        if self._weight > MAX_WEIGHT:
            raise _ParseStopped("contains too many values, including those that aliases repeat", place)


def _place_of_event(event: yaml.Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
