"""Evidence for an answer: passages from tool results, the system prompt, the user's message and the history.

Tool results may be JSON with any field names, or text. The longest text of a JSON object is the passage; a
value that looks like a path, a URL or a title names its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from astromesh.knowledge.snippets import Evidence
from astromesh.types import Message

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


# -- JSON --------------------------------------------------------------------------------------------------


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
    named = _source_of(record)
    children = [value for value in record.values() if isinstance(value, (dict, list)) and value]
    texts = {key: value for key, value in record.items() if isinstance(value, str)}
    main = max(texts, key=lambda key: len(texts[key]), default="")
    if main and _is_prose(texts[main]) and not _LOCATION.match(texts[main]):
        heading = next((texts[k] for k in _TITLE_KEYS if texts.get(k) and k != main), "")
        text = texts[main].strip()
        if direct and not named and len(text) < 300:
            text = "\n".join((text, *_facts(record, main)))  # values beside a message belong to it
        found.append(Evidence(text, named or source or heading, heading, direct=direct))
    elif not children and (facts := _facts(record, "")):
        found.append(Evidence("\n".join(facts), source, direct=True))
    for child in children:
        _walk(
            child, named or source, direct and len(record) == 1 and isinstance(child, dict), depth + 1, found
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


# -- text --------------------------------------------------------------------------------------------------


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
