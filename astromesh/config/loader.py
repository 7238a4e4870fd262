"""YAML text to nodes with line and column; no input makes it hang or fall over (reliability.md R15).

libyaml's events are read one by one: nothing recurses, depth and size are bounded before anything is built.
(libyaml takes quadratic time on deep flow nesting and on many %TAG directives; both are cut off here.)
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

import yaml

from astromesh.config.environment import substitute
from astromesh.config.nodes import Node, Place, Steps, dotted
from astromesh.config.scalars import NotFinite, NumberTooLarge, plain
from astromesh.errors import InvalidManifest

#: bytes of a file
MAX_BYTES = 1_048_576
#: faults of a file that are told at once
MAX_FAULTS = 100
#: levels of nesting
MAX_DEPTH = 64
#: nodes, aliases expanded; a text counts one more for each 16 characters
MAX_WEIGHT = 100_000
_CHARACTERS_PER_WEIGHT = 16
#: numbers that are none here, in sentences
NO_NUMBERS: dict[type[ValueError], str] = {
    NumberTooLarge: "is a number beyond 64 bits",
    NotFinite: "must be a finite number",
}

_TAG_DIRECTIVE = re.compile(r"^%TAG", re.MULTILINE)
_TEXT_TAGS = ("!", "tag:yaml.org,2002:str")
#: what libyaml says → what to do
_HINTS = (
    ("mapping values are not allowed", "check the indentation, and put text that holds ': ' in quotes"),
    ("cannot start any token", "indent with spaces; put text that starts with a special character in quotes"),
    ("did not find expected ',' or", "is a comma, bracket or quote missing? Inside { } put ${…} in quotes"),
    ("could not find expected ':'", "is a ':' missing, or the indentation wrong?"),
    ("did not find expected key", "check the indentation of this line and the one above"),
    ("unexpected end of stream", "is a closing quote missing?"),
)  # fmt: skip


class _Stop(Exception):
    """The rest of the file cannot be read."""

    def __init__(self, message: str, place: Place, hint: str = "") -> None:
        self.message, self.place, self.hint = message, place, hint
        super().__init__(message)


class Document:
    """One file as read.

    Args:
        file: as faults name it.
        node: the document, or None where it cannot be read.
        faults: what is wrong with the YAML itself.
    """

    __slots__ = ("faults", "file", "node")

    def __init__(self, file: Path) -> None:
        self.file = file
        self.node: Node | None = None
        self.faults: list[InvalidManifest] = []

    def fault(self, message: str, place: Place, steps: Steps = (), hint: str = "") -> None:
        self.faults.append(fault(self.file, message, place, steps, hint))


def fault(file: Path, message: str, place: Place, steps: Steps = (), hint: str = "") -> InvalidManifest:
    """A fault at a place of a file."""
    return InvalidManifest(
        message, file=str(file), line=place.line, column=place.column, key=dotted(steps), hint=hint
    )


def read(file: Path, env: Mapping[str, str]) -> Document:
    """Reads one file; whatever is wrong with it is a fault of the document, never an exception."""
    document = Document(file)
    try:
        with open(file, "rb", opener=_at_once) as stream:
            if not S_ISREG(os.fstat(stream.fileno()).st_mode):
                document.fault("is no regular file", Place())
                return document
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        document.fault(f"cannot be read: {error.strerror or error}", Place())
        return document
    if len(raw) > MAX_BYTES:
        document.fault(f"is larger than {MAX_BYTES} bytes", Place(1, 1))
        return document
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        document.fault("is not UTF-8 text", _place_at(raw[: error.start].decode(errors="replace")))
        return document
    return parse(text, document, env)


def _at_once(path: str, flags: int) -> int:
    """Opens what may be a pipe, which nobody may ever write to."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse(text: str, document: Document, env: Mapping[str, str]) -> Document:
    """Reads YAML text into the document."""
    if directive := _TAG_DIRECTIVE.search(text):
        document.fault("%TAG directives are not supported", _place_at(text[: directive.start()]))
        return document
    composer = _Composer(document, env)
    try:
        composer.run(text)
    except _Stop as stop:
        document.node = None
        document.fault(stop.message, stop.place, composer.path(), stop.hint)
    except yaml.YAMLError as error:
        document.node = None
        document.fault(*_translated(error, text))
    return document


def _place_at(before: str) -> Place:
    return Place(before.count("\n") + 1, len(before) - before.rfind("\n"))


def _translated(error: yaml.YAMLError, text: str) -> tuple[str, Place, Steps, str]:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark or error.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
        context = f" {error.context}" if error.context else ""
        hint = next((hint for start, hint in _HINTS if start in error.problem), "")
        return f"is not valid YAML:{context}{',' if context else ''} {error.problem}", place, (), hint
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode()[: error.position].decode(errors="replace")
        return "is not valid YAML: control characters are not allowed", _place_at(before), (), ""
    return f"is not valid YAML: {error}", Place(1, 1), (), ""


class _Composer:
    """Builds the nodes of one document from events, with a stack of what is open."""

    def __init__(self, document: Document, env: Mapping[str, str]) -> None:
        self._document = document
        self._env = env
        self._open: list[Node] = []
        #: for each open mapping the key that waits for its value; for a list None
        self._keys: list[str | None] = []
        self._anchors: dict[str, Node] = {}
        self._weight = 0

    def path(self) -> Steps:
        """Where in the document the reading stands."""
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
                raise _Stop("has more faults; mend these first", _place(event))
        if self._document.node is None:
            raise _Stop("is empty", Place(1, 1))

    def _document_start(self, event: yaml.Event) -> None:
        if self._document.node is not None:
            raise _Stop("a second document starts here: one file holds one document", _place(event))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        place = _place(event)
        if self._expects_key():
            self._key(event, place)
            return
        node = self._value(event, place)
        self._anchor(event, node)
        self._add(node)

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        place = _place(event)
        if self._expects_key():
            raise _Stop("a key must be text", place)
        self._refuse_tag(event, place)
        if len(self._open) >= MAX_DEPTH:
            raise _Stop(f"is nested more than {MAX_DEPTH} levels deep", place)
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
        place = _place(event)
        node = self._anchors.get(event.anchor or "")
        if self._expects_key():
            raise _Stop("a key must be text", place)
        if node is None:
            raise _Stop(f"the alias *{event.anchor} has no anchor &{event.anchor} above it", place)
        if any(node is above for above in self._open):
            raise _Stop(f"the alias *{event.anchor} stands inside its own anchor", place)
        if len(self._open) + node.height > MAX_DEPTH:
            raise _Stop(f"is nested more than {MAX_DEPTH} levels deep", place)
        self._count(node.weight, place)
        self._add(node)

    def _expects_key(self) -> bool:
        return bool(self._open) and self._keys[-1] is None and isinstance(self._open[-1].value, dict)

    def _key(self, event: yaml.ScalarEvent, place: Place) -> None:
        """A key is text as it stands: `1`, `on` and `null` too."""
        self._refuse_tag(event, place)
        key: str = event.value
        if event.implicit[0] and key in ("", "<<"):
            raise _Stop("a key is missing" if not key else "merge keys (<<) are not supported", place)
        self._count(1 + len(key) // _CHARACTERS_PER_WEIGHT, place)
        mapping = self._open[-1]
        if (first := mapping.keys.get(key)) is not None:
            message = f"the key {key!r} stands here twice, first in line {first.line}, column {first.column}"
            self._document.fault(message, place, (*self.path(), key))
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
        if "${" in text:
            return self._substituted(event, place)
        node = Node(text, place, 1 + len(text) // _CHARACTERS_PER_WEIGHT)
        self._count(node.weight, place)
        node.literal = event.style == "|"
        if event.implicit[0]:
            try:
                node.value = plain(text)
            except (NumberTooLarge, NotFinite) as error:
                self._document.fault(NO_NUMBERS[type(error)], place, self.path(), "text needs quotes")
        return node

    def _substituted(self, event: yaml.ScalarEvent, place: Place) -> Node:
        """The text stays text: only a field that asks for a number or a truth value makes it one."""
        result = substitute(event.value, self._env)
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
            raise _Stop(f"the tag {tag} is not supported: values are plain YAML", place)

    def _count(self, weight: int, place: Place) -> None:
        self._weight += weight
        if self._weight > MAX_WEIGHT:
            raise _Stop("holds too much, counting what its aliases repeat", place)


def _place(event: yaml.Event) -> Place:
    mark = event.start_mark
    return Place(mark.line + 1, mark.column + 1) if mark else Place(1, 1)
