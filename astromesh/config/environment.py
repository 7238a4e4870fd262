"""`${VAR}` and `${VAR:-default}` in values. The content of a variable is data and never becomes YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

#: `$${` is a literal `${`; after any other `${` a name must follow, with or without a default
_PATTERN = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\})?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: parts of names are shorter; keys that look like names (`gsk_…`, `hf_…`) contain such a part
_KEY_LIKE = re.compile(r"[A-Za-z0-9]{20}|^(?:sk|pk|rk)[-_]")
#: a literal API key, not the name of an environment variable
_API_KEY = re.compile(r"""(\bapi_key["']?\s*:\s*)(?!["']?\$\{)("[^"]*"|'[^']*'|[^\s,}#]+)""")
#: characters that a value may grow to
MAX_TEXT = 1_048_576


class VariableFault(NamedTuple):
    """A fault of a variable and its offset in the text, in characters."""

    message: str
    offset: int
    hint: str = ""


class Substitution(NamedTuple):
    text: str
    variables: tuple[str, ...]
    faults: tuple[VariableFault, ...]


def substitute(text: str, env: Mapping[str, str]) -> Substitution:
    """Substitutes the variables of a text.

    An unset variable is a fault unless it has a default. With a default, an empty variable counts as unset.
    """
    if "${" not in text:
        return Substitution(text, (), ())
    parts: list[str] = []
    names: list[str] = []
    faults: list[VariableFault] = []
    end = size = 0
    for match in _PATTERN.finditer(text):
        content = _variable_content(match, env)
        if isinstance(content, VariableFault):
            faults.append(content)
            content = ""
        elif match[1]:
            names.append(match[1])
        parts += (text[end : match.start()], content)
        size += len(content)
        end = match.end()
        if size > MAX_TEXT:
            faults.append(
                VariableFault(f"is longer than {MAX_TEXT} characters after substitution", match.start())
            )
            break
    return Substitution("".join((*parts, text[end:])), tuple(names), tuple(faults))


def literal(text: str) -> str:
    """Returns a text that `substitute` makes this one of: it names no variables."""
    return text.replace("${", "$${")


def _variable_content(match: re.Match[str], env: Mapping[str, str]) -> str | VariableFault:
    name, default = match[1], match[2]
    if match[0] == "$${":
        return "${"
    if name is None:
        message = "`${` must be followed by the name of a variable and `}`"
        return VariableFault(message, match.start(), "Write `$${` for a literal `${`.")
    value = env.get(name)
    if default is not None and not value:
        return default
    if value is None:
        hint = f"Set it, or write `${{{name}:-default}}`."
        return VariableFault(f"the environment variable {name} is not set", match.start(), hint)
    if not _is_text(value):
        return VariableFault(f"the environment variable {name} is not UTF-8 text", match.start())
    return value


def _is_text(value: str) -> bool:
    """Returns whether a value is UTF-8: other bytes of the environment are read as lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_variable_name(name: str) -> str:
    """Checks a variable's name (POSIX). Raises ValueError without the text itself, which may be a key."""
    if name and not _NAME.fullmatch(name):
        raise ValueError(
            "looks like a key, not like the name of an environment variable. Put the key into a variable and "
            "write the variable's name."
        )
    return name


def displayable_name(name: str, key: str, what: str = "variable") -> str:
    """Returns a variable's or file's name for a message, or which key names it where it may be a secret."""
    return f"the {what} that {key} names" if _KEY_LIKE.search(name) else name


VariableName = Annotated[str, AfterValidator(check_variable_name)]


# -- manifests that are stored: without literal keys ---------------------------------------------------------


#: what stands in a stored manifest in place of a literal key
HIDDEN_KEY = '"***"'


def hide_api_keys(text: str) -> str:
    """Returns a manifest without literal API keys."""
    return _API_KEY.sub(rf"\1{HIDDEN_KEY}", text)


def restore_api_keys(text: str, present: str) -> str:
    """Returns a manifest with the literal API keys of its present text, in their order."""
    keys = [found[1] for found in _API_KEY.findall(present)]
    if not keys or len(keys) != len(_API_KEY.findall(text)):
        return text
    return _API_KEY.sub(lambda found: found[1] + keys.pop(0), text)
