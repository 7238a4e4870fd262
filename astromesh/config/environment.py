"""`${VAR}` and `${VAR:-default}` in values. What a variable holds is data: it never becomes YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

#: `$${` is a literal `${`; anything else behind `${` must be a name, with or without a default
_PATTERN = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: words of names are shorter; keys that could be names (`gsk_…`, `hf_…`) have such a part
_KEY_LIKE = re.compile(r"[A-Za-z0-9]{20}|^(?:sk|pk|rk)[-_]")
#: characters that a value may grow to
MAX_TEXT = 1_048_576


class VariableFault(NamedTuple):
    """What is wrong, and where in the text (an offset in characters)."""

    message: str
    offset: int
    hint: str = ""


class Substituted(NamedTuple):
    text: str
    variables: tuple[str, ...]
    faults: tuple[VariableFault, ...]


def substitute(text: str, env: Mapping[str, str]) -> Substituted:
    """Puts the variables' content in.

    A variable that is unset is a fault unless it has a default; with one, an empty variable counts as unset.
    """
    if "${" not in text:
        return Substituted(text, (), ())
    parts: list[str] = []
    names: list[str] = []
    faults: list[VariableFault] = []
    end = size = 0
    for match in _PATTERN.finditer(text):
        content = _content(match, env)
        if isinstance(content, VariableFault):
            faults.append(content)
            content = ""
        elif match[1]:
            names.append(match[1])
        parts += (text[end : match.start()], content)
        size += len(content)
        end = match.end()
        if size > MAX_TEXT:
            faults.append(VariableFault(f"grows beyond {MAX_TEXT} characters", match.start()))
            break
    return Substituted("".join((*parts, text[end:])), tuple(names), tuple(faults))


def _content(match: re.Match[str], env: Mapping[str, str]) -> str | VariableFault:
    name, default = match[1], match[2]
    if match[0] == "$${":
        return "${"
    if name is None:
        message = "'${' must be followed by the name of a variable and '}'"
        return VariableFault(message, match.start(), "write '$${' for a literal '${'")
    value = env.get(name)
    if default is not None and not value:
        return default
    if value is None:
        hint = f"set it, or write ${{{name}:-default}}"
        return VariableFault(f"the environment variable {name} is not set", match.start(), hint)
    if not _is_text(value):
        return VariableFault(f"the environment variable {name} is not UTF-8 text", match.start())
    return value


def _is_text(value: str) -> bool:
    """Bytes that are no UTF-8 come out of the environment as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def variable(name: str) -> str:
    """A variable's name (POSIX), or nothing. Raises ValueError without what was written: it may be a key."""
    if name and not _NAME.fullmatch(name):
        raise ValueError(
            "looks like a key, and is no name of a variable: put it into a variable and write that one's name"
        )
    return name


def shown(name: str, key: str, what: str = "variable") -> str:
    """A variable's or file's name for a message, or which key names it where it may be the secret itself."""
    return f"the {what} that {key} names" if _KEY_LIKE.search(name) else name


VariableName = Annotated[str, AfterValidator(variable)]
