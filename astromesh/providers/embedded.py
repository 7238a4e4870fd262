"""The offline provider `embedded`: no key, no download, no network, and no language model.

It calls the tool that fits a question, then quotes the passages that answer it with their source, or states
that it found none. It reads messages, tools and context, and knows no agent, pattern or prompt.

Tool results may be JSON with any field names, or text. The longest text of a JSON object is the passage; a
value that looks like a path, a URL or a title names its source.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from time import perf_counter
from typing import Any, NamedTuple
from uuid import uuid4

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.knowledge.ranking import STOP_WORDS, name_stems, stems, words_of
from astromesh.knowledge.snippets import (
    SHORT_ANSWER,
    Evidence,
    Section,
    best_units,
    join_units,
    leading_units,
    rank_sections,
    sections_of,
    split_pieces,
)
from astromesh.plugins import Deps
from astromesh.providers.base import Capabilities
from astromesh.text import NEAREST_FOUND, NOTHING_FOUND
from astromesh.tokens import estimate, estimate_request
from astromesh.types import (
    CompletionRequest,
    CompletionResult,
    Delta,
    JsonObject,
    Message,
    ToolCall,
    ToolSpec,
    Usage,
)

# -- evidence: passages of tool results, the system prompt, the user's message and the history ---------------


#: characters of evidence that are read; ranking runs in the event loop
MAX_TEXT = 60_000
#: most characters of a line that names a source
_LONGEST_LINE = 300
#: words from which on a string is a passage and not a value
PROSE_WORDS = 5
_DEEPEST = 12
_LOCATION = re.compile(
    r"^(https?://\S+|[\w./@~-]*[\w-]\.[A-Za-z][A-Za-z0-9]{0,5}(#\S*)?|[\w.-]+(/[\w.-]+)+)$"
)
_SOURCE_KEYS = ("source", "document", "doc", "file", "filename", "path", "url", "uri", "link", "citation")
_TITLE_KEYS = ("heading", "title", "section", "name")
_ERROR_KEYS = ("error", "errors", "exception")
_SOURCE_LINE = re.compile(
    r"^\s*[\[(*_]*(?:source|document|file|from)s?\s*[:=]\s*[*_]*\s*(.+?)[\])*_]*\s*$", re.I
)
_FAILED_TOOL = re.compile(r"^(The tool ['\"]|Error\b|Traceback\b|Unknown tool\b)", re.I)
# instructions to the model answer no question
_INSTRUCTION = re.compile(
    r"^\W*(you (are|must|should|will|can|may|have|help)\b|you're\b|your (task|role|job|answer|name)\b"
    r"|always\b|never\b|answer\b|respond\b|reply\b|do not\b|don't\b|be \w+\b|today is\b"
    r"|if (the|a) (user|customer|question)\b|when (the|a) (user|customer)\b|current date\b)",
    re.I,
)


def from_tools(messages: Iterable[Message]) -> list[Evidence]:
    """Returns the passages of tool messages, in order, each text once."""
    found: list[Evidence] = []
    left = MAX_TEXT
    for message in messages:
        if message.role == "tool" and left > 0:
            passages = read_result(message.content)
            found += (replace(p, text=p.text[:left]) if len(p.text) > left else p for p in passages)
            left -= sum(len(p.text) for p in passages)
    return list({passage.text: passage for passage in reversed(found)}.values())[::-1]


def read_result(content: str) -> list[Evidence]:
    """Returns the passages of a tool's answer (JSON of any shape, or text); an error has none."""
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        return [] if _FAILED_TOOL.match(content) else _from_text(content)
    if isinstance(value, str):
        return _from_text(value)
    found: list[Evidence] = []
    _walk(value, "", True, 0, found)
    return found


def from_system(text: str, offered: Iterable[str] = ()) -> list[Evidence]:
    """Returns the paragraphs and list items of a system prompt that do not instruct the model.

    Args:
        text: the prompt.
        offered: descriptions of the request's tools; lines that list them are left out.
    """
    offered = [description.partition("\n")[0] for description in offered]
    lines: list[str] = []
    for line in text[:MAX_TEXT].splitlines():
        if _is_tool_line(line, offered):
            continue
        sentences = re.split(r"(?<=[.!?])\s+", line)
        lines.append(" ".join(s for s in sentences if not _INSTRUCTION.match(s)))
    blocks = re.split(r"\n\s*\n", "\n".join(lines))
    return [Evidence(block.strip(), origin="system") for block in blocks if _is_prose(block)]


def _is_tool_line(line: str, offered: Iterable[str]) -> bool:
    """Whether a line describes a tool: `- search(query: text): Finds …`, or its name and the description."""
    _, _, end = line.partition(": ")
    return any(
        description and (line.endswith(description) or (_is_prose(end) and description.endswith(end)))
        for description in offered
    )


def from_history(messages: Sequence[Message]) -> list[Evidence]:
    """Returns the statements of the user in the newest messages."""
    return [
        Evidence(sentence, origin="history")
        for message in messages[-40:]
        if message.role == "user"
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", message.content[:2000])
        if len(sentence.split()) > 2 and not sentence.rstrip().endswith("?")
    ]


# -- JSON ----------------------------------------------------------------------------------------------------


def _walk(value: Any, source: str, direct: bool, depth: int, found: list[Evidence]) -> None:
    if depth > _DEEPEST:
        return
    if isinstance(value, dict):
        _record(value, source, direct, depth, found)
    elif isinstance(value, list):
        if value and all(_is_scalar(item) and not _is_prose(item) for item in value):
            found.append(Evidence(", ".join(_shown(item) for item in value), source, direct=True))
            return
        for item in value:
            _walk(item, source, False, depth + 1, found)
    elif _is_prose(value):
        found.append(Evidence(value.strip(), source, direct=direct))
    elif value is not None and value != "":
        found.append(Evidence(_shown(value), source, direct=True))


def _record(record: dict[str, Any], source: str, direct: bool, depth: int, found: list[Evidence]) -> None:
    if any(record.get(key) for key in _ERROR_KEYS):
        return
    if (score := _search_score(record)) is not None:
        heading = record.get("heading") or record.get("title") or ""
        found.append(Evidence(record["text"].strip(), record["document"], heading, score=score))
        return
    own_source = _source_of(record)
    children = [value for value in record.values() if isinstance(value, (dict, list)) and value]
    texts = {key: value for key, value in record.items() if isinstance(value, str)}
    main = max(texts, key=lambda key: len(texts[key]), default="")
    if main and _is_prose(texts[main]) and not _LOCATION.match(texts[main]):
        heading = next((texts[k] for k in _TITLE_KEYS if texts.get(k) and k != main), "")
        text = texts[main].strip()
        if direct and not own_source and len(text) < 300:
            text = "\n".join((text, *_facts(record, main)))  # values beside a message belong to it
        found.append(Evidence(text, own_source or source or heading, heading, direct=direct))
    elif not children and (facts := _facts(record, "")):
        found.append(Evidence("\n".join(facts), source, direct=True))
    for child in children:
        _walk(
            child,
            own_source or source,
            direct and len(record) == 1 and isinstance(child, dict),
            depth + 1,
            found,
        )


def _search_score(record: dict[str, Any]) -> float | None:
    """Returns the score of a passage of knowledge, however short its text is; None for every other record."""
    score = record.get("score")
    is_passage = {"start", "end"} <= record.keys() and all(
        isinstance(record.get(key), str) for key in ("document", "text")
    )
    return float(score) if is_passage and isinstance(score, int | float) else None


def _facts(record: dict[str, Any], but: str) -> list[str]:
    return [
        f"- {key.replace('_', ' ')}: {_shown(value)}"
        for key, value in record.items()
        if key != but and _is_scalar(value) and value != ""
    ]


def _source_of(record: dict[str, Any]) -> str:
    """Returns the source of an object: a field with such a name, else one that looks like a path or a URL."""
    texts = {key.lower(): v.strip() for key, v in record.items() if isinstance(v, str) and 0 < len(v) < 300}
    for key in _SOURCE_KEYS:
        if texts.get(key) and not _is_prose(texts[key]):
            return texts[key]
    nested = record.get("metadata")
    if isinstance(nested, dict) and (inner := _source_of(nested)):
        return inner
    return next((text for text in texts.values() if _LOCATION.match(text)), "")


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (str, int, float, bool))


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else {True: "yes", False: "no"}.get(value, str(value))


def _is_prose(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    # some scripts have no blanks
    return len(value.split()) >= PROSE_WORDS or (len(value) >= 12 and not value.isascii())


# -- text ----------------------------------------------------------------------------------------------------


def _from_text(text: str) -> list[Evidence]:
    """Returns the passages of a text, cut at `Source:` lines above or below them."""
    lines = text.strip().splitlines()
    marks = [(i, m[1]) for i, line in enumerate(lines) if (m := _SOURCE_LINE.match(line[:_LONGEST_LINE]))]
    if not marks:
        return [Evidence(text.strip(), direct=True)] if text.strip() else []
    ends = [i for i, _ in marks]
    if ends[0] == 0:
        spans = zip(ends, [*ends[1:], len(lines)], strict=True)
    else:
        spans = zip([-1, *ends[:-1]], ends, strict=True)
    cut = [
        Evidence("\n".join(lines[start + 1 : end]).strip(), name, direct=len(marks) == 1)
        for (start, end), (_, name) in zip(spans, marks, strict=True)
    ]
    return [passage for passage in cut if passage.text]


# -- answers -------------------------------------------------------------------------------------------------


#: share of the question's words that a passage must have, or its heading
_COVERED, _TITLED = 0.55, 0.45
#: score from which on a passage that a search found answers the question, and from which on it is shown
_LIKELY, _POSSIBLE = 0.5, 0.35
#: share from which on a passage is shown if nothing better is found
_NEAR = 0.15
#: a second passage is quoted if its score is at least this share of the best and its source another
_AS_GOOD = 0.85
_MOST_QUOTED = 2
#: words; a longer message of the user is a question with its material
_LONG_QUESTION = 60
_HEADINGS = re.compile(r"^#{1,6}\s", re.M)
_SENTENCES = re.compile(r"(?<=[.!?？。])\s+|\n+")


class Answer(NamedTuple):
    """An answer. `is_sure`: it has enough of the question's words."""

    text: str
    is_sure: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    """The parts of a conversation.

    Args:
        question: the user's own words, without pasted material.
        since: the messages after the user's last one: tool calls and their results.
        offered: descriptions of the tools.
    """

    question: str
    material: str
    since: tuple[Message, ...]
    before: tuple[Message, ...]
    system: str
    offered: tuple[str, ...] = ()

    @property
    def called(self) -> frozenset[str]:
        """Names of the tools that were called for this question."""
        return frozenset(call.name for message in self.since for call in message.tool_calls)


def read_conversation(request: CompletionRequest) -> Conversation:
    """Reads the question and its context from a request."""
    messages = request.messages
    last = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    question, material = _split(messages[last].content if last >= 0 else "")
    system = "\n\n".join(m.content for m in messages if m.role == "system")
    offered = tuple(tool.description for tool in request.tools)
    return Conversation(question, material, messages[last + 1 :], messages[: max(last, 0)], system, offered)


def find_answer(conversation: Conversation, max_characters: int) -> Answer:
    """Returns the quoted answer; its text is empty if no passage has words of the question.

    Args:
        max_characters: of a quoted passage.
    """
    tools = from_tools(conversation.since)
    context = [Evidence(p, origin="question") for p in _split_material(conversation.material)]
    others = [
        *context,
        *from_system(conversation.system, conversation.offered),
        *from_history(conversation.before),
    ]
    searched = max((one for one in tools if one.score is not None), key=_score_of, default=None)
    if searched is not None and _score_of(searched) >= _LIKELY:
        return Answer(_quote_passage(conversation.question, searched, max_characters), True)
    ranked = rank_sections(conversation.question, [*tools, *others])
    found = [s for s in ranked if s.coverage >= _COVERED or s.title_coverage >= _TITLED]
    if best := [s for s in found if s.passage.origin == "tool"] or found:
        return Answer(_quote_sections(conversation.question, _choose_sections(best), max_characters), True)
    if direct := _direct_answer(tools):
        return Answer(direct, True)
    if searched is not None:
        near = sections_of(searched) if _score_of(searched) >= _POSSIBLE else []
    else:
        near = [s for s in ranked if s.passage.origin in ("tool", "question") and s.coverage >= _NEAR]
    return Answer(
        NEAREST_FOUND + _quote_sections(conversation.question, near[:1], max_characters) if near else "",
        False,
    )


def _score_of(passage: Evidence) -> float:
    return passage.score or 0.0


def _quote_passage(question: str, passage: Evidence, max_characters: int) -> str:
    """Quotes the passage that the search has put first. It need not share a word with the question.

    A short one is quoted whole, a longer one from its beginning if its heading has a word of the question.
    """
    best = next(iter(rank_sections(question, [passage]) or sections_of(passage)), None)
    if best is None or (len(best.text) > max_characters and not best.title_coverage):
        return _quote_sections(question, [best] if best else [], max_characters)
    return _with_sources(join_units(leading_units(best, max_characters)), [passage.source])


def _choose_sections(sections: Sequence[Section]) -> list[Section]:
    best = sections[0]
    more = [
        section
        for section in sections[1:]
        if section.score >= best.score * _AS_GOOD
        and section.coverage >= best.coverage
        and section.passage.source != best.passage.source
        and section.text not in best.text
    ]
    return [best, *more[: _MOST_QUOTED - 1]]


def _quote_sections(question: str, sections: Sequence[Section], max_characters: int) -> str:
    text = "\n\n".join(_quote(question, section, max_characters) for section in sections)
    return _with_sources(text, [section.passage.source for section in sections])


def _quote(question: str, section: Section, max_characters: int) -> str:
    text = join_units(best_units(question, section, max_characters))
    return f"You said: “{text}”" if section.passage.origin == "history" else text


def _direct_answer(passages: Sequence[Evidence]) -> str:
    """Returns the short answers of tools, which need not share a word with the question."""
    short = [p for p in passages if p.direct and len(p.text) <= SHORT_ANSWER]
    return _with_sources("\n\n".join(p.text for p in short), [p.source for p in short])


def _with_sources(text: str, sources: Sequence[str]) -> str:
    names = list(dict.fromkeys(source for source in sources if source))
    if not text or not names:
        return text
    return f"{text}\n\n{'Sources' if len(names) > 1 else 'Source'}: {', '.join(names)}"


def _split(text: str) -> tuple[str, str]:
    """Splits a message into question and material; a short message is only a question."""
    text = text.strip()
    if len(text.split()) <= _LONG_QUESTION:
        return text, ""
    questions = [one for one in _SENTENCES.split(text) if one.rstrip().endswith(("?", "？"))]
    question = " ".join(questions[:3]) or _SENTENCES.split(text)[0]
    return question, text


def _split_material(material: str) -> list[str]:
    """Returns the paragraphs of the material without questions; one text if it has headings."""
    parts = [
        p.strip()
        for p in re.split(r"\n\s*\n", material)
        if p.strip() and not p.rstrip().endswith(("?", "？"))
    ]
    return ["\n\n".join(parts)] if _HEADINGS.search(material) else parts


# -- tools: arguments of a call ------------------------------------------------------------------------------
#
# A tool that reads is called when it shares words with the question, or when it searches. A tool with an
# effect (`write`, `external`) is called only when the user asks for it by its name: `Please create a ticket:
# …` for `create_ticket`; not in a question about it, and not after a `don't`. Arguments are read from the
# question by the tool's JSON Schema; none is made up.

#: names and descriptions of arguments that accept the question itself
QUERY_STEMS = frozenset(
    stems("query queries question q search term keyword phrase prompt request topic ask lookup input")
)
#: names of arguments that accept a text in quotes or behind a colon
TEXT_STEMS = frozenset(stems("text title message body content subject summary note comment description name"))
_CODE_STEMS = frozenset(
    stems("id identifier number no code key ref reference order ticket invoice sku account case")
)
_FORMATS: Mapping[str, re.Pattern[str]] = {
    "date": re.compile(r"\b\d{4}-\d{2}-\d{2}\b"),
    "date-time": re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2})?(?:Z|[+-]\d{2}:?\d{2})?"),
    "time": re.compile(r"\b\d{1,2}:\d{2}(?::\d{2})?\b"),
    "email": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "uri": re.compile(r"https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:!?]"),
    "url": re.compile(r"https?://[^\s<>\"')\]]+[^\s<>\"')\].,;:!?]"),
    "uuid": re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"),
}
_NUMBER = re.compile(r"(?<![\w.,-])-?\d+(?:\.\d+)?(?![\w.,]*\d)(?!\w)")
_CODE = re.compile(r"#?\b(?=[\w-]*\d)[A-Za-z0-9][\w-]*\b")
_QUOTED = re.compile(r"[\"“”„«]([^\"“”„«»]+)[\"“”»]|(?<!\w)['‘]([^'‘’]{2,})['’](?!\w)")
_PROPER = re.compile(r"(?<![.!?]\s)(?<!^)\b([A-ZÀ-Þ][\w'-]+(?:\s+[A-ZÀ-Þ][\w'-]+)*)")
_NOT_FOUND = object()
#: characters of a question from which arguments are read
_MAX_QUESTION = 2000


def fill_arguments(parameters: Mapping[str, Any], question: str, *, whole: bool) -> JsonObject | None:
    """Returns the arguments of a call; None if the question lacks a required one.

    Args:
        parameters: JSON Schema, `type: object`.
        question: the user's words.
        whole: whether the tool searches, so that its only text argument is the question.
    """
    question = question[:_MAX_QUESTION]
    properties = parameters.get("properties") or {}
    required = [name for name in parameters.get("required") or () if isinstance(name, str)]
    arguments: JsonObject = {}
    left = question
    for name in required:
        schema = _plain(properties.get(name) or {}, parameters)
        value = _value(name, schema, left, whole=whole and _only_text(required, properties, parameters))
        if value is _NOT_FOUND or value in arguments.values():
            return None
        arguments[name] = value
        if not _takes_question(name, schema):  # each word is used for one argument only
            left = left.replace(str(value), " ", 1)
    for name, declared in properties.items():
        schema = _plain(declared, parameters)
        if (
            name not in arguments
            and "enum" in schema
            and (value := _enum(schema, question)) is not _NOT_FOUND
        ):
            arguments[name] = value
        elif not required and name not in arguments and _takes_question(name, schema):
            arguments[name] = _cut(question, schema)
    return arguments


def asks_for_text(parameters: Mapping[str, Any]) -> bool:
    """Whether a tool accepts a text that can be a question."""
    properties = parameters.get("properties") or {}
    required = parameters.get("required") or ()
    return any(_takes_question(n, _plain(s, parameters)) for n, s in properties.items()) or _only_text(
        list(required), properties, parameters
    )


def _only_text(required: list[str], properties: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    if len(required) != 1:
        return False
    schema = _plain(properties.get(required[0]) or {}, root)
    return schema.get("type") == "string" and not {"enum", "format", "pattern", "const"} & schema.keys()


def _takes_question(name: str, schema: Mapping[str, Any]) -> bool:
    if schema.get("type") != "string" or {"enum", "format", "pattern", "const"} & schema.keys():
        return False
    words = {*name_stems(name), *name.lower().split("_")}
    return bool(words & QUERY_STEMS) or bool(
        set(stems(str(schema.get("description", "")))) & QUERY_STEMS - {"input"}
    )


def _value(name: str, schema: Mapping[str, Any], question: str, *, whole: bool) -> Any:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        found = _enum(schema, question)
    elif schema.get("type") == "string":
        found = _string(name, schema, question, whole=whole)
    elif schema.get("type") in ("integer", "number"):
        found = _number(schema, question)
    elif schema.get("type") == "array":
        found = _array(name, schema, question)
    else:
        found = _NOT_FOUND
    return schema.get("default", found) if found is _NOT_FOUND else found


def _string(name: str, schema: Mapping[str, Any], question: str, *, whole: bool) -> Any:
    if pattern := _FORMATS.get(str(schema.get("format"))):
        found = pattern.search(question)
        return found[0] if found else _NOT_FOUND
    if schema.get("pattern"):
        return _matching(str(schema["pattern"]), question)
    if whole or _takes_question(name, schema):
        return _cut(question, schema)
    words = set(name_stems(name))
    readers = [_quoted, _after_colon] if words & TEXT_STEMS else [_quoted, _proper]
    if words & _CODE_STEMS:
        readers.insert(0, _code)
    for read in readers:
        if (found := read(question)) is not _NOT_FOUND:
            return found
    return _NOT_FOUND


def _matching(pattern: str, question: str) -> Any:
    """Returns a word that matches a schema's pattern, in linear time: schemas may come from other servers."""
    re2: Any = import_module("re2")
    try:
        fits = re2.compile(pattern)
    except re2.error:
        return _NOT_FOUND
    return next((w for w in re.findall(r"[^\s,;!?]+", question) if fits.search(w.rstrip("."))), _NOT_FOUND)


def _enum(schema: Mapping[str, Any], question: str) -> Any:
    sought = set(stems(question)) | set(question.lower().split())
    named = [
        v for v in schema["enum"] if isinstance(v, str) and (own := name_stems(v)) and set(own) <= sought
    ]
    return max(named, key=len) if named else _NOT_FOUND


def _number(schema: Mapping[str, Any], question: str) -> Any:
    for text in _NUMBER.findall(question):
        number = float(text)
        whole = schema["type"] == "integer"
        low, high = schema.get("minimum", number), schema.get("maximum", number)
        if low <= number <= high and not (whole and "." in text):
            return int(number) if "." not in text else number
    return _NOT_FOUND


def _array(name: str, schema: Mapping[str, Any], question: str) -> Any:
    items = schema.get("items") or {}
    if "enum" in items:
        found = _enum(items, question)
        return found if found is _NOT_FOUND else [found]
    if items.get("type", "string") == "string" and set(name_stems(name)) & QUERY_STEMS:
        return [question]
    return _NOT_FOUND


def _quoted(question: str) -> Any:
    found = [a or b for a, b in _QUOTED.findall(question)]
    return found[0].strip() if len(found) == 1 else _NOT_FOUND


def _after_colon(question: str) -> Any:
    _, colon, rest = question.partition(": ")
    return rest.strip() if colon and rest.strip() else _NOT_FOUND


def _proper(question: str) -> Any:
    """Returns the one name in the question, e.g. a city."""
    found = [name for name in _PROPER.findall(question) if name.lower() not in STOP_WORDS]
    return found[0] if len(found) == 1 else _NOT_FOUND


def _code(question: str) -> Any:
    found = [code.lstrip("#") for code in _CODE.findall(question)]
    return found[0] if len(found) == 1 else _NOT_FOUND


def _cut(question: str, schema: Mapping[str, Any]) -> str:
    limit = schema.get("maxLength")
    return question[:limit] if isinstance(limit, int) else question


def _plain(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a property's schema without reference and without the null of an optional one."""
    if not isinstance(schema, Mapping):
        return {}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        target = (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
        return target if isinstance(target, Mapping) else {}
    options = [s for s in schema.get("anyOf") or () if isinstance(s, Mapping) and s.get("type") != "null"]
    if options:
        return {**schema, **_plain(options[0], root)}
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return {**schema, "type": next((k for k in kinds if k != "null"), "null")}
    return schema


# -- which tool is called ------------------------------------------------------------------------------------

_SEARCH_STEMS = frozenset(
    stems(
        "search find lookup look retrieve knowledge document passage faq wiki article manual information "
        "query answer"
    )
)
#: words that do not tell tools apart
_IDLE_STEMS = frozenset(
    stems("return result list show tool use user data value given number best new current get set")
)
_SEARCH_BONUS = 0.75
_NAME_WEIGHT = 2.0
_REQUEST = re.compile(
    r"^\W*(please\b|(can|could|would|will) you\b|i (want|would like|need) (you )?to\b|i'd like\b)", re.I
)
_ABOUT = re.compile(
    r"^\W*(how|what|why|when|where|who|whom|which|whose|do|does|did|is|are|was|were|should|can|could|may|will|would"
    r"|have|has|tell me|explain)\b",
    re.I,
)
_NEGATED = re.compile(r"\b(don't|do not|never|not|without|no need)\b", re.I)


def choose_tool(
    question: str, tools: Sequence[ToolSpec], called_names: Collection[str] = (), tool_choice: str = "auto"
) -> ToolCall | None:
    """Returns the call of the best fitting tool, None if no tool fits.

    Args:
        question: the user's words.
        tools: the offered tools.
        called: names of tools that were already called for this question.
        tool_choice: of the request; a name or `required` forces a call even if nothing fits.
    """
    if tool_choice == "none":
        return None
    if tool_choice not in ("auto", "required"):
        tools = [tool for tool in tools if tool.name == tool_choice]
    forced = tool_choice != "auto"
    ranked: list[tuple[float, int, ToolSpec, str]] = []
    for index, tool in enumerate(tools):
        score = tool_fit(question, tool)
        if tool.name in called_names or not (score > 0 or (forced and tool.effect == "read")):
            continue
        arguments = fill_arguments(tool.parameters, question, whole=is_search_tool(tool) or forced)
        if arguments is not None:
            ranked.append((-score, index, tool, orjson.dumps(arguments).decode()))
    if not ranked:
        return None
    _, _, tool, arguments_json = min(ranked, key=lambda r: r[:2])
    return ToolCall(f"call_{uuid4().hex[:24]}", tool.name, arguments_json)


def tool_fit(question: str, tool: ToolSpec) -> float:
    """Returns how well a tool fits a question; 0 if it must not be called."""
    if tool.effect != "read":
        return _NAME_WEIGHT * 2 if is_requested(question, tool) else 0.0
    sought = set(stems(question))
    if not sought:  # a greeting has no question
        return 0.0
    name = set(name_stems(tool.name)) - _IDLE_STEMS
    described = set(stems(tool.description)) - _IDLE_STEMS - name
    score = _NAME_WEIGHT * len(sought & name) + len(sought & described)
    return score + (_SEARCH_BONUS if is_search_tool(tool) else 0.0)


def is_search_tool(tool: ToolSpec) -> bool:
    """Whether a tool answers any question: it accepts a text, and its description speaks of finding."""
    words = {*name_stems(tool.name), *stems(tool.description)}
    for name, schema in (tool.parameters.get("properties") or {}).items():
        words |= {
            *name_stems(name),
            *stems(str(schema.get("description", "")) if isinstance(schema, dict) else ""),
        }
    return bool(words & _SEARCH_STEMS) and asks_for_text(tool.parameters)


def is_requested(question: str, tool: ToolSpec) -> bool:
    """Whether a sentence of the user asks for this tool by every word of its name."""
    name_words = set(name_stems(tool.name)) or set(words_of(tool.name.casefold()))
    return any(
        name_words and name_words <= set(stems(sentence)) and _is_request(sentence)
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", question)
    )


def _is_request(sentence: str) -> bool:
    if _NEGATED.search(sentence):
        return False
    return bool(_REQUEST.match(sentence)) or not (_ABOUT.match(sentence) or sentence.rstrip().endswith("?"))


# -- the plugin ----------------------------------------------------------------------------------------------

MODEL = "extractive"


class EmbeddedOptions(BaseModel):
    """Options of `embedded`; it needs none."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    name: str = Field(
        "", description="Name in providers.yaml, shown in answers and metrics; the type if empty."
    )
    model: str = Field(MODEL, description="Shown in answers; it has no effect.")
    longest_quote: int = Field(900, ge=80, description="Maximum of characters quoted from a passage.")


class Embedded:
    """A `Provider` that works by words: it chooses tools by their words and ranks passages by BM25."""

    Options = EmbeddedOptions
    capabilities = Capabilities(json=False, quality=0.0, language_model=False)

    def __init__(self, options: EmbeddedOptions) -> None:
        self.provider, self.model = options.name or "embedded", options.model or MODEL
        self.name = f"{self.provider}/{self.model}"
        self._max_quote = options.longest_quote

    @classmethod
    async def open(cls, options: EmbeddedOptions, deps: Deps) -> Embedded:
        return cls(options)

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        started = perf_counter()
        text, call = self._decide(request)
        output = estimate(text) + (estimate(call.name) + estimate(call.arguments) if call else 0)
        return CompletionResult(
            content=text,
            tool_calls=(call,) if call else (),
            usage=Usage(estimate_request(request), output),
            provider=self.provider,
            model=self.model,
            finish_reason="tool_calls" if call else "stop",
            latency_ms=(perf_counter() - started) * 1000,
        )

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        """Yields the answer by sentences and lines."""
        result = await self.complete(request)
        for piece in split_pieces(result.content):
            yield Delta(piece)
        yield result

    def estimated_cost(self, request: CompletionRequest) -> float:
        return 0.0

    async def ping(self) -> None:
        """Never fails."""

    async def close(self) -> None:
        """Does nothing: no resource is open."""

    def _decide(self, request: CompletionRequest) -> tuple[str, ToolCall | None]:
        """Returns an answer if the tools gave one, else the call of a fitting tool, else the best answer."""
        conversation = read_conversation(request)
        found = find_answer(conversation, self._max_quote)
        called_names = conversation.called
        if not (called_names and found.is_sure):
            call = choose_tool(conversation.question, request.tools, called_names, request.tool_choice)
            if call is not None:
                return "", call
        return found.text or NOTHING_FOUND, None
