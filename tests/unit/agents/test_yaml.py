"""Agents as YAML: every key has its argument, and back again."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from astromesh import Agent, ToolContext, build_agent, tool
from astromesh.agents.parameters import AllKeys
from astromesh.config.agent import AgentManifest, AgentSpec, Memory
from astromesh.config.records import Metadata
from astromesh.errors import ConfigError, InvalidConfiguration
from astromesh.graph import PromptGraph
from astromesh.graph.nodes import PromptNode
from astromesh.guardrails.limits import MaxLength
from astromesh.testing import ScriptedProvider

#: keys of the manifest -> the argument that has them
ARGUMENTS = {
    "metadata.name": "name", "metadata.version": "version", "metadata.namespace": "namespace",
    "metadata.labels": "labels", "spec.identity.display_name": "display_name",
    "spec.identity.description": "description", "spec.model.primary": "model",
    "spec.model.fallback": "fallback", "spec.model.routing": "routing", "spec.model.roles": "roles",
    "spec.prompts.system": "system", "spec.prompts.variables": "variables",
    "spec.orchestration.pattern": "pattern", "spec.orchestration.max_iterations": "max_iterations",
    "spec.orchestration.timeout_seconds": "timeout_seconds",
    "spec.tools": "tools", "spec.skills": "skills", "spec.memory": "memory", "spec.guardrails": "guardrails",
    "spec.permissions": "permissions", "spec.budgets": "budgets", "spec.sessions": "sessions",
    "spec.queue": "queue", "spec.stream": "stream", "spec.on_disconnect": "on_disconnect",
    "spec.recording": "recording", "spec.client_tools": "client_tools",
    "spec.overridable": "overridable", "spec.output_schema": "output_type",
    "spec.schedules": "schedules", "spec.callback": "callback",
}  # fmt: skip
#: mappings whose keys are arguments of their own
OPEN = {"spec.identity", "spec.model", "spec.prompts", "spec.orchestration"}


def keys_of_manifest() -> Iterator[str]:
    yield from (f"metadata.{name}" for name in Metadata.model_fields)
    for name, field in AgentSpec.model_fields.items():
        kind: Any = field.annotation
        if f"spec.{name}" in OPEN:
            yield from (f"spec.{name}.{key}" for key in kind.model_fields)
        else:
            yield f"spec.{name}"


def test_every_key_of_yaml_has_its_argument() -> None:
    assert sorted(keys_of_manifest()) == sorted(ARGUMENTS)
    arguments = {*inspect.signature(Agent.__init__).parameters, *AllKeys.__annotations__}
    assert set(ARGUMENTS.values()) <= arguments


def test_build_agent_is_agent() -> None:
    assert build_agent is Agent


class Answer(BaseModel):
    text: str


EVERYTHING: dict[str, Any] = {
    "name": "poet",
    "version": "1",
    "namespace": "arts",
    "labels": {"team": "a"},
    "display_name": "Poet",
    "description": "Writes.",
    "system": "Rhyme in {{ language }}.",
    "variables": {"language": "French"},
    "fallback": ["ollama:llama3.1", {"provider": "openai", "model": "gpt-4o"}],
    "routing": "cost_optimized",
    "roles": {"judge": "openai:gpt-4o"},
    "pattern": "plan_and_execute",
    "max_iterations": 3,
    "timeout_seconds": 20.0,
    "tools": [{"name": "time", "type": "builtin", "builtin": "current_time"}],
    "output_type": Answer,
    "memory": {"conversational": {"backend": "sqlite", "path": "chat.db", "strategy": "summary"}},
    "guardrails": {"input": ["pii_detection"], "output": [MaxLength(max_characters=100)]},
    "permissions": ["time"],
    "budgets": {"per_run": {"cost_usd": 0.1}, "per_session": {"tokens": 100}},
    "sessions": {"concurrency": "reject"},
    "queue": {"max_running": 2},
    "stream": "final",
    "on_disconnect": "continue",
    "recording": True,
    "client_tools": "deny",
    "overridable": ["model", "temperature"],
    "schedules": [{"cron": "0 8 * * 1-5", "timezone": "Europe/Madrid", "query": "What is new?"}],
    "callback": {"url": "https://example.com/hook", "events": ["failed"], "headers": {"x-key": "k"}},
}


def test_an_agent_is_written_and_read_without_loss(tmp_path: Path) -> None:
    agent = Agent("openai:gpt-4o-mini", **EVERYTHING)
    text = agent.to_yaml(strict=True)
    file = tmp_path / "poet.agent.yaml"
    file.write_text(text)
    again = Agent.from_yaml(file, output_type=Answer)
    assert (again.name, again.to_yaml()) == ("poet", text)
    spec = yaml.safe_load(text)["spec"]
    assert spec["model"]["primary"] == {"provider": "openai", "model": "gpt-4o-mini"}
    assert spec["model"]["fallback"][0] == {"provider": "ollama", "model": "llama3.1"}
    assert spec["guardrails"]["output"] == [{"type": "max_length", "max_characters": 100}]
    assert spec["permissions"] == {"tools": ["time"]}
    assert spec["model"]["routing"] == {"strategy": "cost_optimized"}
    assert spec["model"]["roles"] == {"judge": {"primary": {"provider": "openai", "model": "gpt-4o"}}}
    assert AgentManifest.model_validate(yaml.safe_load(text), strict=False).name == "poet"
    assert set(Memory.model_fields) >= spec["memory"].keys()


def test_every_argument_of_an_agent_stands_at_its_key() -> None:
    written = yaml.safe_load(Agent("openai:gpt-4o-mini", **EVERYTHING).to_yaml())
    for path in ARGUMENTS:
        if path != "spec.skills":
            value = written
            for key in path.split("."):
                value = value[key]


def test_arguments_may_stand_in_the_mappings_of_others() -> None:
    """One by its own name goes before."""
    models = {
        "primary": "openai:gpt-4o-mini",
        "fallback": "ollama:llama3.1",
        "routing": {"strategy": "latency_optimized"},
        "roles": {"judge": {"primary": "openai:gpt-4o", "fallback": ["ollama:llama3.1"]}},
    }
    orchestration = {"pattern": "plan_and_execute", "max_iterations": 3, "timeout_seconds": 20}
    spec = yaml.safe_load(Agent(models, pattern=orchestration).to_yaml())["spec"]
    gpt, llama = {"provider": "openai", "model": "gpt-4o"}, {"provider": "ollama", "model": "llama3.1"}
    assert spec["model"] == {
        "primary": {"provider": "openai", "model": "gpt-4o-mini"},
        "fallback": [llama],
        "routing": {"strategy": "latency_optimized"},
        "roles": {"judge": {"primary": gpt, "fallback": [llama]}},
    }
    assert spec["orchestration"] == orchestration
    named = Agent(
        models, pattern=orchestration, fallback=gpt, routing="priority", roles={"poet": "ollama:llama3.1"},
        max_iterations=5, timeout_seconds=timedelta(minutes=1),
    )  # fmt: skip
    spec = yaml.safe_load(named.to_yaml())["spec"]
    assert (spec["model"]["fallback"], spec["model"]["routing"]) == ([gpt], {"strategy": "priority"})
    assert spec["model"]["roles"] == {"poet": {"primary": llama}}
    assert spec["orchestration"] == {**orchestration, "max_iterations": 5, "timeout_seconds": 60.0}


@pytest.mark.parametrize(
    ("memory", "written"),
    [
        ("in_memory", {"conversational": {"backend": "in_memory"}}),
        ("sqlite:///tmp/a.db", {"conversational": {"backend": "sqlite", "path": "/tmp/a.db"}}),
        (
            "postgresql://host/db",
            {"conversational": {"backend": "postgres", "url": "postgresql://host/db"}},
        ),
        ("rediss://host", {"conversational": {"backend": "redis", "url": "rediss://host"}}),
        (
            {"backend": "in_memory", "max_turns": 3},
            {"conversational": {"backend": "in_memory", "max_turns": 3}},
        ),
        (
            {"backend": "sqlite", "path": Path("chat.db")},
            {"conversational": {"backend": "sqlite", "path": "chat.db"}},
        ),
        ({"episodic": {"backend": "in_memory"}}, {"episodic": {"backend": "in_memory"}}),
        ({}, None),
    ],
)
def test_memory_is_a_name_a_url_or_a_block(memory: Any, written: Any) -> None:
    text = Agent("openai:gpt-4o-mini", memory=memory).to_yaml(strict=True)
    assert yaml.safe_load(text)["spec"].get("memory") == written


@pytest.mark.parametrize(
    ("budgets", "written"),
    [
        ({"tokens": 9}, {"per_run": {"tokens": 9}}),
        ({"per_session": {"tokens": 9}}, {"per_session": {"tokens": 9}}),
        (None, None),
    ],
)
def test_limits_without_a_scope_are_those_of_a_run(budgets: Any, written: Any) -> None:
    text = Agent("openai:gpt-4o-mini", budgets=budgets).to_yaml(strict=True)
    assert yaml.safe_load(text)["spec"].get("budgets") == written


def test_an_agent_that_may_use_no_tool_stays_so() -> None:
    spec = yaml.safe_load(Agent("openai:gpt-4o-mini", tools=[add], permissions=[]).to_yaml())["spec"]
    assert spec["permissions"] == {"tools": []}
    assert "permissions" not in yaml.safe_load(Agent("openai:gpt-4o-mini").to_yaml())["spec"]


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool(timeout_seconds=5)
def double(a: int) -> int:
    """Doubles a number."""
    return 2 * a


def test_functions_that_can_be_imported_are_written_as_such() -> None:
    text = Agent("openai:gpt-4o-mini", tools=[add, double]).to_yaml(strict=True)
    assert yaml.safe_load(text)["spec"]["tools"] == [
        {"name": "add", "type": "internal", "function": f"{__name__}:add"},
        {"name": "double", "type": "internal", "function": f"{__name__}:double", "timeout_seconds": 5},
    ]


def test_what_cannot_be_written_stands_as_a_comment_at_its_key() -> None:
    graph = PromptGraph("steps", nodes=[PromptNode("p")])
    agent = Agent(
        ScriptedProvider(),
        system=no_prompt,
        tools=[lambda_tool()],
        guardrails=[shout],
        memory="memory",
        pattern=graph,
        fallback=["ollama:llama3.1", ScriptedProvider()],
    )
    text = agent.to_yaml()
    commented = [line.strip() for line in text.splitlines() if "#" in line]
    assert commented == [
        "# provider: the Python object scripted/test-model cannot be written here",
        "- # provider: the Python object scripted/test-model cannot be written here",
        f"# system: the function {no_prompt.__qualname__} cannot be written here",
        "# graph: the graph 'steps' (it belongs into graphs/steps.graph.yaml) cannot be written here",
        "# type: the Python object inner cannot be written here",
        "# - type: the Python object shout cannot be written here",
        "# - type: the Python object shout cannot be written here",
    ]
    spec = yaml.safe_load(text)["spec"]
    assert spec["memory"]["conversational"]["backend"] == "in_memory"
    assert spec["model"]["fallback"] == [{"provider": "ollama", "model": "llama3.1"}, {"model": "test-model"}]
    with pytest.raises(ConfigError, match=r"spec\.model\.primary\.provider: .*spec\.tools\[0\]\.type"):
        agent.to_yaml(strict=True)


def lambda_tool() -> Any:
    def inner() -> str:
        """Closes over something."""
        return ""

    return inner


def no_prompt(ctx: ToolContext) -> str:
    return ""


def shout(text: str) -> str:
    return text.upper()


# -- from a folder -------------------------------------------------------------------------------------------

MANIFEST = """\
apiVersion: astromesh/v1
kind: Agent
metadata: {name: NAME}
spec:
  model: {primary: {provider: MODEL}}
  prompts: {system: "You are ${WHO}."}
  tools: TOOLS
"""


def write(folder: Path, name: str, model: str = "embedded", tools: str = "[]") -> Path:
    file = folder / "agents" / f"{name}.agent.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    text = MANIFEST.replace("NAME", name).replace("MODEL", model).replace("TOOLS", tools)
    file.write_text(text)
    return file


async def test_an_agent_of_a_folder_uses_its_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And opens none of the agents that it does not call."""
    monkeypatch.setenv("WHO", "Ada")
    tools = "[{name: ask, type: agent, agent: inner}]"
    outer, inner = write(tmp_path, "outer", tools=tools), write(tmp_path, "inner")
    write(tmp_path, "broken", model="nobody")
    agent = Agent.from_yaml(outer)
    assert agent.to_yaml() == outer.read_text()
    assert (await agent.run("Hi")).ok
    model = ScriptedProvider("Hello.")
    with agent.override(model=model):
        assert (await agent.run("Hi")).text == "Hello."
    assert model.requests[0].messages[0].content == "You are Ada."
    assert [tool.name for tool in model.requests[0].tools] == ["ask"]
    assert Agent.from_yaml(inner).name == "inner"


def test_faults_of_a_file_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHO", "Ada")
    file = write(tmp_path, "poet")
    file.write_text(file.read_text().replace("prompts", "promts"))
    with pytest.raises(InvalidConfiguration, match=r"poet\.agent\.yaml:6:3: spec\.promts: unknown key"):
        Agent.from_yaml(file)
    with pytest.raises(InvalidConfiguration, match="cannot be read"):
        Agent.from_yaml(tmp_path / "none.agent.yaml")
