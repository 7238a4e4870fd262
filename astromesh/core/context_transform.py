"""Context transforms: a Jinja2 template of a JSON object between two agents (document 001, nested agents).

Text of a model can only become a value. While the template renders, every expression writes a mark. Then
the marks are replaced: inside quotes by text, elsewhere by a JSON value. So `{"customer": "{{
customer_id }}", "items": {{ items }}}` keeps its shape whatever the arguments hold.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from jinja2 import ChainableUndefined, Undefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from astromesh.core.template_limits import written
from astromesh.core.templates import CompiledTemplate, Sandbox
from astromesh.errors import ConfigError, TemplateFailed, ToolFailed
from astromesh.plugins import Transform
from astromesh.types import JsonObject

MAX_CONTEXT = 100_000

_VALUES = "_values"
# the marks are from Unicode's private use area
_MARK = re.compile("\ue000(\\d+)\ue001")
_STRING_OR_MARK = re.compile('"(?:[^"\\\\]|\\\\.)*"|' + _MARK.pattern, re.DOTALL)


def compile_transform(template: str) -> Transform:
    """A function from the arguments of a tool call to the context of the nested run.

    The template reads each argument by its name, and all of them as `arguments`.

    Args:
        template: Jinja2 text that renders to a JSON object.

    Raises:
        ConfigError: the template is invalid, or cannot render to a JSON object.
    """
    compiled = CompiledTemplate(template, "context_transform", _SANDBOX)
    if not template.strip().startswith("{"):
        raise ConfigError("context_transform must be the template of a JSON object, which starts with '{'.")

    def transform(arguments: Mapping[str, Any]) -> JsonObject:
        values: list[Any] = []
        try:
            text = compiled.render({**arguments, "arguments": dict(arguments), _VALUES: values})
            return _read(_filled(text, values))
        except (TemplateFailed, orjson.JSONEncodeError) as error:
            raise ToolFailed(f"context_transform: {error}") from error

    return transform


@pass_context
def _mark(context: Context, value: Any) -> Any:
    """Replaces the result of an expression by a mark; Jinja2 calls it for every expression."""
    written(context, value)
    if isinstance(value, Markup):  # a result of `tojson` is JSON already
        return value
    values = context[_VALUES]
    values.append(None if isinstance(value, Undefined) else value)
    return f"\ue000{len(values) - 1}\ue001"


def _filled(text: str, values: list[Any]) -> str:
    def fill(match: re.Match[str]) -> str:
        if match[1] is not None:
            return _json(values[int(match[1])])
        return _MARK.sub(lambda mark: _json(_text(values[int(mark[1])]))[1:-1], match[0])

    return _STRING_OR_MARK.sub(fill, text)


def _text(value: Any) -> str:
    """A value inside quotes; a missing value is empty, as everywhere in templates."""
    if value is None:
        return ""
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def _read(text: str) -> JsonObject:
    if len(text) > MAX_CONTEXT:
        raise ToolFailed(f"context_transform rendered more than {MAX_CONTEXT} characters.")
    try:
        context = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ToolFailed(f"context_transform rendered invalid JSON: {error}") from error
    if not isinstance(context, dict):
        raise ToolFailed("context_transform must render a JSON object.")
    return context


@pass_context
def _to_json(context: Context, value: Any, indent: int | None = None) -> Markup:
    return Markup(_text_of_json(context, value, indent))  # noqa: S704 - marks what is JSON already


_SANDBOX = Sandbox(finalize=_mark)
_SANDBOX.undefined = ChainableUndefined
_text_of_json = _SANDBOX.filters["tojson"]
_SANDBOX.filters["tojson"] = _to_json
