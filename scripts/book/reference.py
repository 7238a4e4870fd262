"""The reference pages of the book, made of the code: `python scripts/book/reference.py FOLDER` writes them.

`make book` makes them itself (hooks.py), so no page is committed and none can be out of date: keys from the
JSON Schemas, commands from their parser, routes and events from the OpenAPI description, Python from its
docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: page in reference/ -> its title, and what it is about
PAGES: Mapping[str, tuple[str, str]] = {
    "configuration": ("Every key", "Every key of every YAML file, with its type and default."),
    "workflow-files": ("Every key of a workflow", "Every key of the files in the folder of a workflow."),
    "cli": ("Every command", "Every command with its arguments and options."),
    "http": ("Every route", "Every route with its scope, parameters, body and answers."),
    "events": ("Every event", "Every event of runs and Tasks with its fields."),
    "python": ("Every public name", "Every public class and function of the Python package."),
}
INDEX = "These pages are made of the code at each build of the book."
PACKAGES = ("astromesh", "astromesh.graph", "astromesh.workflow", "astromesh.testing", "astromesh.errors")
_LINK = re.compile(r"\]\((?=[\w/-]+\.md)")
_CODE = re.compile(r"(`[^`]*`)")
Schema = Mapping[str, Any]


def page(name: str) -> str:
    """Returns one of PAGES, or the index of them."""
    if name == "index":
        rows = [(f"[{title}]({file}.md)", about) for file, (title, about) in PAGES.items()]
        lines = ["# Generated reference", "", INDEX, *table(("page", "has"), rows)]
        return "\n".join(lines) + "\n"
    title, about = PAGES[name]
    return "\n".join([f"# {title}", "", about, "", *_MAKERS[name]()]) + "\n"


def prose(text: str) -> str:
    """Returns a text for Markdown: links from this folder, and no tags but in code."""
    parts = _CODE.split(_LINK.sub("](../", text))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def cell(text: str) -> str:
    return prose(" ".join(text.split())).replace("|", "\\|")


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield from ("", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}")
        yield from (f"| {' | '.join(row)} |" for row in rows)
        yield ""


# -- schemas -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schemas:
    """Named schemas of one file. Each is a section `PREFIX-NAME`, to which types lead."""

    prefix: str
    named: Mapping[str, Schema]

    def type_of(self, schema: Schema) -> str:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return (
                f"[{name}](#{self.anchor(name)})" if self.has_keys(name) else self.type_of(self.named[name])
            )
        if "const" in schema:
            return f"`{json.dumps(schema['const'])}`"
        if "enum" in schema:
            return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
        if choices := schema.get("anyOf") or schema.get("oneOf"):
            found = dict.fromkeys(self.type_of(one) for one in choices if one.get("type") != "null")
            return " or ".join(found)
        return self._plain_type(schema)

    def _plain_type(self, schema: Schema) -> str:
        kind = schema.get("type", "any")
        if isinstance(kind, list):  # a text with `${VARIABLE}` stands for a number, too
            kind = " or ".join(one for one in kind if one != "string" or schema.get("pattern") != r"\$\{")
        if kind == "array":
            return f"list of {self.type_of(schema.get('items') or {})}"
        values = schema.get("additionalProperties")
        if kind == "object" and isinstance(values, Mapping) and values:
            return f"map of {self.type_of(values)}"
        low, high = schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")
        bounds = f" from {low}" * (low is not None) + f" to {high}" * (high is not None)
        return f"{kind}{bounds}"

    def has_keys(self, name: str) -> bool:
        schema = self.named[name]
        return bool(schema.get("properties") or schema.get("oneOf"))

    def anchor(self, name: str) -> str:
        return f"{self.prefix}-{name.lower()}"

    def section(self, name: str, level: str = "###") -> Iterator[str]:
        schema = self.named[name]
        yield f"{level} {name} {{#{self.anchor(name)}}}"
        yield ""
        if about := schema.get("description"):
            yield prose(about)
        yield from table(("key", "type", "default", ""), self.rows(schema))

    def rows(self, schema: Schema) -> list[tuple[str, str, str, str]]:
        """The keys of a schema; of one with variants, those of all, each with the variants that have it."""
        variants = [self.resolved(one) for one in schema.get("oneOf") or [schema]]
        titles = [variant.get("title", "") for variant in variants]
        found: dict[str, tuple[Schema, bool, list[str]]] = {}
        for variant in variants:
            for key, value in variant.get("properties", {}).items():
                needed = key in variant.get("required", ())
                first = found.setdefault(key, (value, needed, []))
                first[2].append(variant.get("title", ""))
                if "const" in value and value != first[0]:  # what tells the variants apart
                    either = {
                        **first[0],
                        "enum": [*first[0].get("enum", [first[0].get("const")]), value["const"]],
                    }
                    either.pop("const", None)
                    found[key] = either, needed, first[2]
        return [self._row(key, *of, titles) for key, of in found.items()]

    def _row(
        self, key: str, schema: Schema, needed: bool, of: list[str], variants: list[str]
    ) -> tuple[str, str, str, str]:
        default = schema.get("default")
        shown = (
            "required" if needed else "" if isinstance(default, dict | None) else f"`{json.dumps(default)}`"
        )
        about = cell(schema.get("description", "")) + _owners(of, variants)
        return f"`{key}`", cell(self.type_of(schema)), cell(shown), about

    def resolved(self, schema: Schema) -> Schema:
        return self.named[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema

    def below(self, schema: Any) -> Iterator[str]:
        """Names of the schemas that a schema leads to, the nearest first, each once."""
        seen: dict[str, None] = {}
        waiting = [schema]
        while waiting:
            names = [name for name in _references(waiting.pop(0)) if name not in seen]
            seen |= dict.fromkeys(names)
            waiting += [self.named[name] for name in names]
        yield from seen


def _owners(of: list[str], variants: list[str]) -> str:
    """Which of the variants have a key, unless all do."""
    others = [name for name in dict.fromkeys(variants) if name not in of]
    if not others or not all(variants):
        return ""
    word, names = ("Not of", others) if len(others) < len(of) else ("Only of", list(dict.fromkeys(of)))
    return f" {word} {', '.join(f'`{name}`' for name in names)}."


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(name := value.get("$ref"), str):
            yield name.rpartition("/")[2]
        for one in value.values():
            yield from _references(one)
    elif isinstance(value, list):
        for one in value:
            yield from _references(one)


def _file(heading: str, prefix: str, schema: Schema) -> Iterator[str]:
    schemas = Schemas(prefix, schema.get("$defs", {}))
    yield from (f"## {heading} {{#{prefix}}}", "")
    yield from table(("key", "type", "default", ""), schemas.rows(schema))
    for name in schemas.below(schema):
        if schemas.has_keys(name):
            yield from schemas.section(name)


def configuration() -> Iterator[str]:
    from astromesh.config.schema import SCHEMA_FILES, schema
    from astromesh.plugins import Plugins

    for kind, name in SCHEMA_FILES.items():
        yield from _file(f"kind {kind}", name, schema(kind, Plugins()))


def workflow_files() -> Iterator[str]:
    from astromesh.config.workflow_folder import FILES, json_schema_of

    for name in FILES:
        yield from _file(name, Path(name).stem.replace("_", "-"), json_schema_of(name))


# -- commands ----------------------------------------------------------------------------------------------


def cli() -> Iterator[str]:
    import typer

    from astromesh.cli.main import complete_app

    yield from _command(typer.main.get_command(complete_app()), "astromesh")


def _command(command: Any, name: str) -> Iterator[str]:
    yield from (f"## `{name}`", "", prose(inspect.cleandoc(command.help or "")), "")
    parameters = [one for one in command.params if one.name != "help"]
    rows = [(_spelling(one), cell(getattr(one, "help", None) or ""), _value(one)) for one in parameters]
    yield from table(("argument or option", "", "default"), rows)
    for below, one in sorted(getattr(command, "commands", {}).items()):
        yield from _command(one, f"{name} {below}")


def _spelling(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))


def _value(parameter: Any) -> str:
    default = parameter.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    shown = "required" if parameter.required else f"`{default}`" if plain else ""
    return " ".join(filter(None, (shown, f"(`{parameter.envvar}`)" if parameter.envvar else "")))


# -- routes and events -------------------------------------------------------------------------------------


def _description() -> dict[str, Any]:
    from starlette.datastructures import State

    from astromesh.api.fastapi_app import create_fastapi_app

    return create_fastapi_app(State()).openapi()


def http() -> Iterator[str]:
    description = _description()
    schemas = Schemas("schema", description["components"]["schemas"])
    operations = [
        (method, path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]
    for tag in description["tags"]:
        yield from (f"## {tag['name']}", "", prose(tag.get("description", "")), "")
        for method, path, operation in operations:
            if operation.get("tags", ["health"])[0] == tag["name"]:
                yield from _operation(schemas, f"{method.upper()} {path}", operation)
    yield from ("## Schemas", "")
    for name in schemas.below(description["paths"]):
        if schemas.has_keys(name) and not _is_event(schemas.named[name]):
            yield from schemas.section(name)


def _operation(schemas: Schemas, place: str, operation: Schema) -> Iterator[str]:
    needed = [names for one in operation.get("security", ()) for names in one.values()]
    scopes = sorted({scope for names in needed for scope in names})
    scope = f" Scope: {', '.join(f'`{one}`' for one in scopes)}." if scopes else ""
    yield from (f"### `{place}` {{#{operation['operationId'].lower()}}}", "")
    yield from (f"**{operation.get('summary', '')}.** {prose(operation.get('description', ''))}{scope}", "")
    rows = [
        (
            f"`{one['name']}`",
            one["in"],
            cell(schemas.type_of(one["schema"])),
            cell(one.get("description", "")),
        )
        for one in operation.get("parameters", ())
    ]
    if body := operation.get("requestBody"):
        rows.append(("body", "", cell(_content(schemas, body)), ""))
    yield from table(("parameter", "in", "type", ""), rows)
    answers, problems = [], []
    for status, one in operation["responses"].items():
        if list(one.get("content", ())) == ["application/problem+json"]:
            problems.append(status)
        else:
            answers.append((status, cell(_content(schemas, one)), cell(one.get("description", ""))))
    if problems:
        answers.append((", ".join(problems), f"[Problem](#{schemas.anchor('Problem')})", "An error."))
    yield from table(("status", "body", ""), answers)


def _content(schemas: Schemas, holder: Schema) -> str:
    content = holder.get("content", {})
    return "; ".join(
        f"{schemas.type_of(one.get('schema') or {})} as `{kind}`" for kind, one in content.items()
    )


def _is_event(schema: Schema) -> bool:
    return "const" in schema.get("properties", {}).get("event", {})


def events() -> Iterator[str]:
    from astromesh import events as classes

    schemas, told = Schemas("event", _description()["components"]["schemas"]), set[str]()
    for name, schema in schemas.named.items():
        if not _is_event(schema):
            continue
        kind = schema["properties"]["event"]["const"]
        payload = schemas.resolved(schema["properties"]["data"])
        yield from (f"## `{kind}`", "", prose(schema.get("description", "")), "")
        if hasattr(classes, of := name.removesuffix("Event")):
            yield from (f"In Python: `astromesh.events.{of}`.", "")
        yield from table(("field", "type", "default", ""), schemas.rows(payload))
        for below in schemas.below(payload):
            if schemas.has_keys(below) and below not in told:
                told.add(below)
                yield from schemas.section(below)


# -- Python ------------------------------------------------------------------------------------------------


def python() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        yield from (f"## {package}", "", prose(_about(module)), "")
        for name in _names(module):
            yield from _name(package, name, getattr(module, name))


def _names(module: Any) -> list[str]:
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    return [
        name
        for name, one in vars(module).items()
        if inspect.isclass(one) and one.__module__ == module.__name__
    ]


def _name(package: str, name: str, value: Any) -> Iterator[str]:
    yield from (f"### {name} {{#{package.replace('.', '-')}-{name.lower()}}}", "")
    yield from _callable(name, value)
    if not inspect.isclass(value):
        return
    for member, found in vars(value).items():
        function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if not member.startswith("_") and inspect.isfunction(function) and function.__doc__:
            yield from (f"**`{name}.{member}`**", "")
            yield from _callable(member, function)


def _callable(name: str, value: Any) -> Iterator[str]:
    if callable(value):
        yield from ("```python", f"{_kind(value)}{name}{_signature(value)}", "```", "")
    yield from (_about(value), "")


def _kind(value: Any) -> str:
    if inspect.isclass(value):
        return "class "
    return "async def " if inspect.iscoroutinefunction(value) else "def "


def _signature(value: Any) -> str:
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return "(…)"
    parts = [_parameter(one) for one in signature.parameters.values() if one.name != "self"]
    after = signature.return_annotation
    returns = f" -> {after}" if isinstance(after, str) and not inspect.isclass(value) else ""
    text = f"({', '.join(parts)})"
    return (text if len(text) < 90 else "(\n    " + ",\n    ".join(parts) + ",\n)") + returns


def _parameter(parameter: inspect.Parameter) -> str:
    """Its name, type and default; a default that is an object is `…`, as its address changes."""
    default = parameter.default
    if default is not parameter.empty and " at 0x" in repr(default):
        parameter = parameter.replace(default=...)
    written = parameter.annotation
    text = str(parameter)
    return text.replace(repr(written), written, 1) if isinstance(written, str) else text


def _about(value: Any) -> str:
    import docstring_parser

    if not (text := inspect.getdoc(value)) or (inspect.isclass(value) and not value.__doc__):
        return ""
    parsed = docstring_parser.parse(text, docstring_parser.DocstringStyle.GOOGLE)
    lines = [prose(parsed.short_description or ""), "", prose(parsed.long_description or ""), ""]
    lines += [f"- `{one.arg_name}`: {cell(one.description or '')}" for one in parsed.params]
    lines += [f"- raises `{one.type_name}`: {cell(one.description or '')}" for one in parsed.raises]
    if parsed.returns and parsed.returns.description:
        lines.append(f"- returns: {cell(parsed.returns.description)}")
    return "\n".join(lines)


_MAKERS: Mapping[str, Callable[[], Iterator[str]]] = {
    "configuration": configuration,
    "workflow-files": workflow_files,
    "cli": cli,
    "http": http,
    "events": events,
    "python": python,
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("index", *PAGES):
        (folder / f"{name}.md").write_text(page(name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
