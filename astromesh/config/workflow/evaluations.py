"""evaluations.yaml of a workflow, and datasets `evals/NAME.yaml`: cases and their checks."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from astromesh.config.records import JsonMap
from astromesh.config.workflow.manifest import Id, ManifestFile, Section

CheckType = Literal[
    "status", "equals", "contains", "regex", "path", "schema", "schema_valid", "golden", "tool_called",
    "no_tool_called", "cost_below", "latency_below", "judge", "function",
]  # fmt: skip


class Assertion(Section):
    """A check of one outcome."""

    type: CheckType = Field(description="Which check; `schema` is `schema_valid`.")
    expected: Any = Field(
        None,
        description="What is expected. cost_below: US dollars; latency_below: seconds; regex: pattern.",
    )
    field_path: str = Field("", description="Dotted path within the output; empty: all of it.")
    schema_id: str | JsonMap = Field(
        "", alias="schema", description="schema: an id of the workflow's schemas, a file, or a JSON Schema."
    )
    file: str = Field("", description="golden: the file compared with.")
    ignore: tuple[str, ...] = Field((), description="golden: keys that may differ.")
    tool: str = Field("", description="tool_called, no_tool_called: which tool; empty: any.")
    arguments: JsonMap = Field(
        default_factory=dict, description="tool_called: arguments that a call must have; it may have more."
    )
    rubric: str = Field("", description="judge: what a good answer is, as text for a model.")
    model: str = Field("", description="judge: `provider:name`; absent: `judge` of the file.")
    function: str = Field(
        "", description="function: module:name, called with the outcome. False or a text: it fails."
    )


class EvaluationCase(Section):
    id: Id = Field(description="Unique in its suite.")
    input: Any = Field(None, description="The query of an agent, or the input of a workflow.")
    context: JsonMap = Field(default_factory=dict, description="Agents: variables of the prompt template.")
    history: tuple[JsonMap, ...] = Field((), description="Agents: the messages before, `{role, content}`.")
    start: str | None = Field(None, description="Workflows: start node; absent: the default one.")
    replay: str | None = Field(None, description="File with the recorded model and tool results.")
    assertions: tuple[Assertion, ...] = Field((), description="Checks; all must hold.")


class EvaluationSuite(Section):
    name: str = Field(min_length=1)
    tags: tuple[str, ...] = ()
    cases: tuple[EvaluationCase, ...] = ()


class EvaluationsFile(ManifestFile):
    """Suites, or the cases of one suite, which has the name of the file."""

    agent: str = Field("", description="evals/NAME.yaml: the agent; absent: the one with the file's name.")
    judge: str = Field("", description="Model of `judge` checks that name none, as `provider:name`.")
    tags: tuple[str, ...] = Field((), description="Of the suite that `cases` are.")
    suites: tuple[EvaluationSuite, ...] = ()
    cases: tuple[EvaluationCase, ...] = ()
