"""The tools and right calls of the Berkeley Function Calling Leaderboard, from the package `bfcl-eval`.

`make venv` installs its data into `.venv/bfcl`, without the packages that it needs. Its schemas are no JSON
Schemas, and its answers list the values that count as right: here they become a schema and one call.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from astromesh.tools.json_schema import schema_validator
from astromesh.tools.mcp.toolset import model_name

DATA = Path(sys.prefix) / "bfcl" / "bfcl_eval" / "data"
#: the categories that have schemas and right calls
CATEGORIES = (
    "simple_python", "simple_java", "simple_javascript", "multiple", "parallel", "parallel_multiple",
    "live_simple", "live_multiple", "live_parallel", "live_parallel_multiple",
)  # fmt: skip
#: their names of types; "" is any type
TYPES = {
    "dict": "object", "HashMap": "object", "float": "number", "double": "number", "long": "integer",
    "tuple": "array", "ArrayList": "array", "Array": "array", "String": "string", "char": "string",
    "Boolean": "boolean", "any": "",
}  # fmt: skip
#: as many tools as OpenAI accepts in one request
MAX_TOOLS = 128
Json = dict[str, Any]


class Tool(NamedTuple):
    """A tool. `name` may have dots."""

    name: str
    description: str
    parameters: Json


class RightCall(NamedTuple):
    """A call as a model should make it. Args: faults: why it does not fit its schema."""

    entry: str
    name: str
    arguments: Json
    faults: tuple[str, ...]


class Batch:
    """Entries whose tools can be offered together, as no two differ and have one name."""

    def __init__(self) -> None:
        self.tools: dict[str, Tool] = {}
        self.calls: list[RightCall] = []

    def add(self, tools: Mapping[str, Tool], calls: Iterable[RightCall]) -> bool:
        """Adds an entry, unless it does not fit."""
        if any(self.tools.get(name, tool) != tool for name, tool in tools.items()):
            return False
        if len(self.tools.keys() | tools.keys()) > MAX_TOOLS:
            return False
        self.tools.update(tools)
        self.calls += calls
        return True


class Suite(NamedTuple):
    """All that is tried."""

    entries: int
    schemas: int
    batches: list[Batch]

    @property
    def calls(self) -> list[RightCall]:
        return [call for batch in self.batches for call in batch.calls]


def read_suite(every: int = 1) -> Suite:
    """Reads the entries. Args: every: takes the first of so many."""
    entries = schemas = 0
    batches: list[Batch] = []
    for entry, answers in [*_entries()][::every]:
        tools: dict[str, Tool] = {}
        for one in entry["function"]:
            tool = Tool(one["name"], one["description"], json_schema(one["parameters"]))
            tools.setdefault(model_name(tool.name), tool)
        calls = [right_call(entry["id"], tools, answer) for answer in answers]
        entries, schemas = entries + 1, schemas + len(entry["function"])
        if not any(batch.add(tools, calls) for batch in batches):
            batches.append(Batch())
            assert batches[-1].add(tools, calls), entry["id"]
    return Suite(entries, schemas, batches)


def _entries() -> Iterator[tuple[Json, list[Json]]]:
    for category in CATEGORIES:
        file = f"BFCL_v4_{category}.json"
        answers = {one["id"]: one["ground_truth"] for one in _lines(DATA / "possible_answer" / file)}
        yield from ((entry, answers[entry["id"]]) for entry in _lines(DATA / file))


def _lines(file: Path) -> Iterator[Json]:
    return map(json.loads, file.read_text(encoding="utf-8").splitlines())


# -- schemas -------------------------------------------------------------------------------------------------


def json_schema(parameters: Json) -> Json:
    """Returns the JSON Schema of their schema.

    Types get their JSON names. The allowed values that stand at a list are those of its items. `optional` is
    left out: what may be omitted is what `required` does not have.
    """
    schema = {key: value for key, value in parameters.items() if key not in ("type", "optional")}
    if kind := TYPES.get(written := parameters.get("type", ""), written):
        schema["type"] = kind
    if "properties" in schema:
        schema["properties"] = {name: json_schema(one) for name, one in schema["properties"].items()}
    if "items" in schema:
        schema["items"] = json_schema(schema["items"])
    if kind == "array" and "enum" in schema and not any(isinstance(one, list) for one in schema["enum"]):
        schema["items"] = {**schema.get("items", {}), "enum": schema.pop("enum")}
    return schema


# -- right calls ---------------------------------------------------------------------------------------------


def right_call(entry: str, tools: Mapping[str, Tool], answer: Json) -> RightCall:
    """Returns one of the calls that an answer allows, if possible one that fits the schema."""
    ((name, allowed),) = answer.items()
    parameters = tools[model_name(name)].parameters
    arguments = _object(parameters, allowed)
    faults = schema_validator(parameters).iter_errors(arguments)
    return RightCall(
        entry, name, arguments, tuple(f"{'.'.join(map(str, f.instance_path))}: {f.message}" for f in faults)
    )


def _object(schema: Json, allowed: Json) -> Json:
    """Returns an object. Args: allowed: the right values of each of its keys; "" allows to omit it."""
    properties, required = schema.get("properties", {}), schema.get("required", ())
    made: Json = {}
    for name, values in allowed.items():
        one = properties.get(name, {})
        choices = [_value(one, value) for value in values if value != "" or name in required]
        fits = schema_validator(one).is_valid
        fitting = [value for value in choices if fits(value)]
        if fitting or (choices and "" not in values):
            made[name] = (fitting or choices)[0]
    return made


def _value(schema: Json, value: Any) -> Any:
    """Returns one right value; the objects in it list the right values of their keys."""
    if isinstance(value, list):
        return [_value(schema.get("items", {}), one) for one in value]
    if isinstance(value, dict) and all(isinstance(one, list) for one in value.values()):
        return _object(schema, value)
    return value
