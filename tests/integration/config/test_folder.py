"""Folders of configuration: what is sound loads, what is wrong is told, all of it, and harms nobody else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import jinja2
import pytest
import yaml

from astromesh.config.base import TemplateFault
from astromesh.config.folder import Configuration, load
from astromesh.config.parser import MAX_BYTES
from astromesh.core import prompt_engine
from astromesh.errors import InvalidConfiguration
from astromesh.plugins import Plugins
from tests.unit.config.samples import AGENT, BILLING, ENV, FewPlugins, write_good

JINJA = jinja2.Environment(autoescape=True)


def check_template(text: str) -> TemplateFault | None:
    try:
        JINJA.parse(text)
    except jinja2.TemplateSyntaxError as error:
        return TemplateFault(error.message or "", error.lineno)
    return None


def loaded(folder: Path, env: Mapping[str, str] = ENV) -> Configuration:
    return load(folder, env=env, resolver=FewPlugins(), check_template=check_template)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A folder without a fault."""
    return write_good(tmp_path)


def edited(folder: Path, name: str, *changes: tuple[str, str]) -> list[str]:
    """All faults after a change of one file, without the folder's own name."""
    path = folder / name
    text = path.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return [str(fault).replace(f"{folder}/", "") for fault in loaded(folder).every_fault()]


SUPPORT = "agents/support.agent.yaml"


def test_the_key_that_stands_in_place_of_a_missing_one_is_named(good: Path) -> None:
    """The wrong one may be the plugin's, which nobody can ask before the right one is there."""
    assert edited(good, SUPPORT, ("provider: ollama", "providr: ollama"))[0].endswith(
        "spec.model.primary.provider: required key is missing. Did you misspell it as `providr`?"
    )


@pytest.mark.parametrize("seconds", ["1.0e+308", "315360001"])
def test_seconds_that_no_timer_counts_are_refused(good: Path, seconds: str) -> None:
    (fault,) = edited(good, SUPPORT, ("timeout_seconds: 10", f"timeout_seconds: {seconds}"))
    assert "timeout_seconds: must be at most" in fault


# -- sound folders -------------------------------------------------------------------------------------------


def test_the_page_s_own_files_load_without_a_fault(good: Path) -> None:
    found = loaded(good)
    assert found.every_fault() == ()
    assert sorted(found.agents) == ["billing-agent", "support-agent"]
    assert list(found.rag) == ["product-knowledge"]
    assert list(found.graphs) == ["flow"]
    assert list(found.mcp.spec.servers) == ["calendar", "files"]
    assert found.channels.spec.channels["whatsapp"].default_agent == "support-agent"
    assert found.edges == {"support-agent": ("billing-agent",), "billing-agent": ()}
    agent = found.agents["support-agent"]
    assert [block.name for block in agent.spec.model.usable()] == ["ollama/llama3.1:8b", "openai/gpt-4o-mini"]
    assert agent.spec.model.blocks()[1].price is not None
    assert agent.stream == "token"
    assert (
        found.rag["product-knowledge"]
        .folder(found.rag["product-knowledge"].spec.sources[0])
        .samefile(good / "knowledge")
    )


def test_an_empty_folder_is_sound_and_has_every_default(tmp_path: Path) -> None:
    found = loaded(tmp_path, env={})
    assert (found.every_fault(), found.agents) == ((), {})
    assert found.runtime.spec.storage.url.get_secret_value() == "sqlite:///.astromesh/astromesh.db"
    assert found.providers.spec.routing.circuit_breaker.failure_threshold == 3


def test_the_data_folder_moves_the_default_database_only(tmp_path: Path) -> None:
    env = {"ASTROMESH_DATA_DIR": "/data"}
    assert (
        loaded(tmp_path, env=env).runtime.spec.storage.url.get_secret_value()
        == "sqlite:////data/astromesh.db"
    )
    text = "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {storage: {url: 'postgresql://h/d'}}\n"
    (tmp_path / "runtime.yaml").write_text(text)
    assert loaded(tmp_path, env=env).runtime.spec.storage.url.get_secret_value() == "postgresql://h/d"


def test_a_missing_folder_is_a_fault(tmp_path: Path) -> None:
    found = load(tmp_path / "nowhere")
    assert "the folder does not exist" in str(found.faults[0])
    assert "astromesh init" in str(found.faults[0])
    with pytest.raises(InvalidConfiguration):
        found.require_sound()


def test_without_plugins_the_blocks_are_not_looked_into(good: Path) -> None:
    (good / SUPPORT).write_text(AGENT.replace("top_k: 5}", "whatever: 5}", 1))
    assert load(good, env=ENV).every_fault() == ()


@pytest.mark.parametrize(
    ("block", "iterations", "seconds", "pattern"),
    [
        ("", 7, 30, "plan_and_execute"),
        ("  orchestration: {pattern: react}\n", 7, 30, "react"),
        ("  orchestration: {max_iterations: 3, timeout_seconds: 5}\n", 3, 5, "plan_and_execute"),
        ("  orchestration: {pattern: autonomous}\n", 50, 30, "autonomous"),
        ("  orchestration: {pattern: graph, graph: flow}\n", 50, 30, "graph"),
        ("  orchestration: {pattern: reasoning}\n", None, 30, "reasoning"),
    ],
)
def test_what_an_agent_does_not_say_runtime_yaml_says(
    good: Path, block: str, iterations: int | None, seconds: float, pattern: str
) -> None:
    defaults = "{orchestration: {pattern: plan_and_execute, max_iterations: 7, timeout_seconds: 30}}"
    head = "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec:\n"
    (good / "runtime.yaml").write_text(f"{head}  defaults: {defaults}\n")
    (good / "agents" / "a.agent.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: a}\n"
        "spec:\n  model: {primary: {provider: embedded}}\n" + block
    )
    found = loaded(good)
    assert found.every_fault() == ()
    made = found.agents["a"].spec.orchestration
    assert (made.pattern, made.max_iterations, made.timeout_seconds) == (pattern, iterations, seconds)


# -- faults of one agent -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "key", "message"),
    [
        ("pipeline: product-knowledge", "pipeline: knowledge", "spec.tools[0].pipeline", "unknown RAG"),
        ("server: calendar", "server: calender", "spec.tools[2].server", "Did you mean `calendar`?"),
        ("agent: billing-agent", "agent: biling-agent", "spec.tools[4].agent", "`billing-agent`?"),
        ("name: now", "name: create_ticket", "spec.tools[3].name", "duplicate tool `create_ticket`, first"),
        ("pattern: react", "pattern: reasoning", "spec.orchestration.max_iterations", "Use its budgets."),
        ("pattern: react", "pattern: graph, graph: folw", "spec.orchestration.graph", "Did you mean `flow`?"),
        ("pattern: react", "pattern: supervisor, workers: [x]", "spec.orchestration.workers[0]", "unknown"),
        ("type: object, required", "type: array, required", "spec.tools[1].parameters", "type: object"),
        ("title: {type: string}", "title: 5", "spec.tools[1].parameters.properties.title", "not a valid"),
        ("stream: token", "stream: token\n  output_schema: {}", "spec.stream", "must be final: the answer"),
        ("stream: token", "stream: sentence\n  output_schema: {}", "spec.stream", "must be final"),
        ("stream: token", "output_schema: {type: objekt}", "spec.output_schema.type", "is not a valid JSON"),
        ("stream: token", "output_schema: {pattern: (?=a)}", "spec.output_schema.pattern", "not a valid"),
        ("{% endfor %}", "{% endfro %}", "spec.prompts.system", "Encountered unknown tag 'endfro'"),
        ("{{ customer_id }}", "{{ customer_id }", "spec.tools[4].context_transform", "not a valid Jinja"),
    ],
)  # fmt: skip
def test_what_only_the_whole_tells_is_told_at_its_key(
    good: Path, old: str, new: str, key: str, message: str
) -> None:
    lines = edited(good, SUPPORT, (old, new))
    assert any(f": {key}: " in line and message in line for line in lines), lines
    assert len(lines) == 1


def test_a_blocking_output_rule_refuses_token_and_means_final_otherwise(good: Path) -> None:
    rule = "output:\n      - {type: topic_filter, forbidden_topics: [x]}"
    (line,) = edited(good, SUPPORT, ("output:", rule))
    assert "spec.stream: must be final: the output rule topic_filter needs the whole text" in line
    assert edited(good, SUPPORT, ("  stream: token\n", "")) == []
    assert loaded(good).agents["support-agent"].stream == "final"


def test_a_tool_that_is_not_declared_cannot_be_permitted(good: Path) -> None:
    mcp = '    - {name: calendar, type: mcp, server: calendar, tools: ["list_*"], forward_identity: true}\n'
    (line,) = edited(good, SUPPORT, (mcp, ""), ("tools: [search_knowledge_base, now]", "tools: [now, nwo]"))
    assert (
        "spec.permissions.tools[1]: unknown tool `nwo`; it is not in spec.tools. Did you mean `now`?" in line
    )


def test_a_mistake_in_a_template_is_found_on_its_line_of_the_file(good: Path) -> None:
    text = (good / SUPPORT).read_text()
    line = 1 + text[: text.index("{% endfor")].count("\n")
    (found,) = edited(good, SUPPORT, ("{% endfor %}", "{% endfro %}"))
    assert found.startswith(f"{SUPPORT}:{line}:1: spec.prompts.system: is not a valid Jinja template")


def test_faults_of_every_sort_are_told_at_once_in_order(good: Path) -> None:
    lines = edited(
        good,
        SUPPORT,
        ("display_name", "display_nam"),
        ("provider: ollama", "provider: olama"),
        ("endfor", "endfro"),
        ("pattern: react", "pattern: raect"),
        ("pipeline: product-knowledge", "pipelin: product-knowledge"),
        ("agent: billing-agent", "agent: nobody"),
        ("idempotency: key", "idempotency: yes"),
        ("ttl: 2592000", 'ttl: "${TTL}"'),
        ("  stream: token", "  stream: token\n  stream: final\n  output_schema: {type: nothing}"),
    )
    expected = [
        "display_nam: unknown key",
        "unknown provider `olama`",
        "is not a valid Jinja template",
        "unknown pattern `raect`",
        "spec.tools[0].pipeline: required key is missing",
        "spec.tools[0].pipelin: unknown key `pipelin`",
        "spec.tools[1].idempotency: must be 'none' or 'key'",
        "unknown agent `nobody`",
        "the environment variable TTL is not set",
        "duplicate key `stream`",
        "is not a valid JSON Schema",
    ]
    for message in expected:
        assert any(message in line for line in lines), (message, lines)
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == sorted(numbers)


def test_what_is_there_and_cannot_be_read_is_a_fault_and_not_an_absence(good: Path) -> None:
    """A link of a mount to nowhere, and a folder that cannot be listed."""
    (good / "runtime.yaml").unlink(missing_ok=True)
    (good / "runtime.yaml").symlink_to("..data/runtime.yaml")
    shutil.rmtree(good / "agents")
    (good / "agents").write_text("")
    shutil.rmtree(good / "graphs")
    (good / "graphs").symlink_to("..data/graphs")
    (good / "channels.yaml").unlink()
    told = [str(fault).replace(f"{good}/", "") for fault in loaded(good).faults]
    assert told == [
        "agents: cannot be read: Not a directory",
        "graphs: cannot be read: No such file or directory",
        "runtime.yaml: cannot be read: No such file or directory",
    ]


# -- one harms no other --------------------------------------------------------------------------------------


#: what is wrong with the blocks of an agent, whatever its head is like
FAULTY = """\
apiVersion: astromesh/v1
kind: Agent
metadata: {name: faulty}
spec:
  model: {primary: {provider: opnai, model: m}, fallback: [{provider: embeded}]}
  prompts: {system: "{{ a"}
  tools: [{name: ab, type: webhok}]
  guardrails: {input: [{type: pii_detecton}]}
"""
HIDDEN = {
    "spec.model.primary.provider", "spec.model.fallback[0].provider", "spec.prompts.system",
    "spec.tools[0].type", "spec.guardrails.input[0].type",
}  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("", "", ""),
        ("astromesh/v1", "v2", "apiVersion"),
        ("apiVersion: astromesh/v1\n", "", "apiVersion"),
        ("kind: Agent", "kind: Agnet", "kind"),
        ("metadata: {name: faulty}\n", "", "metadata"),
        ("{name: faulty}", "faulty", "metadata"),
        ("{name: faulty}", "{}", "metadata.name"),
        ("name: faulty", "name: a b!", "metadata.name"),
        ("provider: opnai, ", "", "spec.model.primary.provider"),
        ("{provider: opnai, model: m}", "3", "spec.model.primary"),
        ("primary: {provider: opnai, model: m}, ", "", "spec.model.primary"),
        ("name: ab", "name: a b", "spec.tools[0].name"),
        ("type: webhok", "effect: read", "spec.tools[0].type"),
    ],
)
def test_a_fault_in_the_head_or_of_a_required_key_hides_no_other(
    good: Path, old: str, new: str, key: str
) -> None:
    """What stands in for a required key in the meantime is told to nobody."""
    (good / "agents/faulty.agent.yaml").write_text(FAULTY.replace(old, new, 1) if old else FAULTY)
    found = [fault.key for fault in loaded(good).every_fault() if "faulty" in fault.file]
    below = {one for one in HIDDEN if key and one.startswith(key)}
    assert sorted(found) == sorted((HIDDEN - below) | ({key} if key else set()))


def test_every_fault_of_a_template_is_told_at_its_line(good: Path) -> None:
    """Of two alike in one line one is enough."""
    (good / "agents/faulty.agent.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: faulty}\nspec:\n"
        "  model: {primary: {provider: embedded}}\n"
        "  prompts:\n    system: |\n      {{ a|uper }} {{ c|uper }}\n      {{ b|lowr }}\n"
    )
    found = load(good, env=ENV, resolver=FewPlugins(), check_template=prompt_engine.check_template)
    assert [(fault.line, fault.message) for fault in found.every_fault()] == [
        (8, "is not a valid Jinja template: unknown filter `uper`. Did you mean `upper`?"),
        (9, "is not a valid Jinja template: unknown filter `lowr`. Did you mean `lower`?"),
    ]


def test_a_pipeline_without_a_model_has_the_faults_of_its_other_keys_told(good: Path) -> None:
    (good / "rag/product-knowledge.rag.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: RAGPipeline\nspec:\n"
        "  sources: [{path: nowhere}, {path: nowhere, glob: ''}, {glob: '*.md'}]\n"
        "  chunking: {strategy: markdwn}\n"
    )
    found = [fault.key for fault in loaded(good).every_fault() if "rag.yaml" in fault.file]
    assert sorted(found) == [
        "spec.chunking.strategy", "spec.sources[0].path", "spec.sources[1].glob", "spec.sources[1].path",
        "spec.sources[2]",
    ]  # fmt: skip


def test_an_entry_without_a_type_is_told_where_it_stands_and_not_where_it_is_named(good: Path) -> None:
    (good / "providers.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: ProviderConfig\n"
        "spec: {providers: {openai: {models: [gpt-4o-mini]}}}\n"
    )
    assert [fault.key for fault in loaded(good).every_fault()] == ["spec.providers.openai.type"]


def test_one_broken_agent_does_not_stop_the_others(good: Path) -> None:
    edited(good, SUPPORT, ("stream: token", "stream: tokens"))
    found = loaded(good)
    assert list(found.agents) == ["billing-agent"]
    assert list(found.broken) == ["support-agent"]
    found.require_sound()
    with pytest.raises(InvalidConfiguration, match="must be 'token'"):
        found.require_sound(strict=True)


def test_an_agent_file_that_cannot_be_read_is_broken_by_its_files_name(good: Path) -> None:
    """Nobody can tell its agent's name then, so that what refers to that is not blamed."""
    (good / SUPPORT).write_text("a: [")
    found = loaded(good)
    assert list(found.broken) == ["support"]
    assert found.faults == ()
    assert list(found.agents) == ["billing-agent"]


@pytest.mark.parametrize("name", ["runtime.yaml", "providers.yaml", "mcp.yaml", "channels.yaml"])
def test_a_broken_file_that_all_need_stops_all(good: Path, name: str) -> None:
    (good / name).write_text("kind: [")
    found = loaded(good)
    assert [Path(fault.file).name for fault in found.faults] == [name]
    with pytest.raises(InvalidConfiguration):
        found.require_sound()


def test_a_broken_pipeline_breaks_the_agents_that_need_it(good: Path) -> None:
    lines = edited(good, "rag/product-knowledge.rag.yaml", ("mode: lexical", "mode: lexcal"))
    assert len(lines) == 2
    assert "agents/support.agent.yaml:" in lines[0]
    assert "the RAG pipeline `product-knowledge` has faults" in lines[0]
    assert list(loaded(good).agents) == ["billing-agent"]
    assert loaded(good).faults == ()


def test_two_files_with_one_name_name_each_other_and_neither_runs(good: Path) -> None:
    (good / "agents" / "z.agent.yaml").write_text(BILLING)
    found = loaded(good)
    first, second = found.broken["billing-agent"]
    assert f"{good}/agents/z.agent.yaml:3:18" in str(first)
    assert f"{good}/agents/billing.agent.yaml:3:18" in str(second)
    assert "billing-agent" not in found.agents


def test_agents_in_a_circle_are_named_in_order(good: Path) -> None:
    (good / "agents" / "billing.agent.yaml").write_text(
        BILLING + "  tools: [{name: up, type: agent, agent: support-agent}]\n"
    )
    found = loaded(good)
    (circle,) = found.cycles
    assert "in a cycle: " in str(circle)
    assert circle.key.startswith("spec.tools[")
    assert found.edges == {"support-agent": ("billing-agent",), "billing-agent": ("support-agent",)}
    assert circle in found.every_fault()


def test_two_circles_are_two_faults(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    head = "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {{name: {}}}\nspec:\n"
    model = "  model: {primary: {provider: embedded}}\n"
    for name, called in {"a": "b", "b": "a", "c": "c", "d": "a"}.items():
        tool = f"  tools: [{{name: t, type: agent, agent: {called}}}]\n"
        (tmp_path / "agents" / f"{name}.agent.yaml").write_text(head.format(name) + model + tool)
    circles = sorted(fault.message.rpartition("cycle: ")[2] for fault in loaded(tmp_path).cycles)
    assert circles[-1] == "c → c"
    assert circles[0] in ("a → b → a", "b → a → b")
    assert len(circles) == 2


def test_a_channel_needs_its_agent(good: Path) -> None:
    (line,) = edited(good, "channels.yaml", ("default_agent: support-agent", "default_agent: suport-agent"))
    assert "default_agent: unknown agent `suport-agent`. Did you mean `support-agent`?" in line


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "transport: http, url",
            "transport: http, command: x, url",
            "command: has no effect with transport http",
        ),
        (
            "transport: stdio, command: npx,",
            "transport: stdio,",
            "command: required key is missing; transport stdio needs it",
        ),
        ("transport: stdio,", "transport: stdio, forward_identity: true,", "forward_identity: has no effect"),
    ],
)
def test_a_server_has_the_keys_of_its_transport(good: Path, old: str, new: str, message: str) -> None:
    (line,) = edited(good, "mcp.yaml", (old, new))
    assert message in line


def test_a_pipeline_needs_its_folder_and_embeddings_for_vectors(good: Path) -> None:
    name = "rag/product-knowledge.rag.yaml"
    lines = edited(
        good,
        name,
        ("../knowledge", "../docs"),
        ("  embeddings: {provider: openai, model: text-embedding-3-small}\n", ""),
        ("mode: lexical", "mode: hybrid"),
    )
    assert any("spec.sources[0].path: the folder " in line for line in lines)
    assert any("spec.retrieval.mode: hybrid needs spec.embeddings" in line for line in lines)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("  shared: true\n", "spec.shared: `shared: true` needs `owner`"),
        ("  owner: acme\n", "spec.owner: has no effect without `shared: true`"),
    ],
)
def test_a_pipeline_is_shared_by_an_owner(good: Path, key: str, message: str) -> None:
    lines = edited(good, "rag/product-knowledge.rag.yaml", ("spec:\n", f"spec:\n{key}"))
    assert any(message in line for line in lines)


# -- warnings ------------------------------------------------------------------------------------------------


def test_files_that_nobody_reads_are_warned_of(good: Path) -> None:
    (good / "provider.yaml").write_text("")
    (good / "agents" / "x.agent.yml").write_text("")
    warnings = [str(warning) for warning in loaded(good).warnings]
    assert any("provider.yaml: is not read. Did you mean `providers.yaml`?" in line for line in warnings)
    assert any("x.agent.yml: is not read. Its name must end in .agent.yaml." in line for line in warnings)


def test_a_provider_without_its_key_is_skipped_with_a_warning(good: Path) -> None:
    found = loaded(good, env={key: value for key, value in ENV.items() if key != "OPENAI_API_KEY"})
    assert found.every_fault() == ()
    assert [block.name for block in found.agents["support-agent"].spec.model.usable()] == [
        "ollama/llama3.1:8b"
    ]
    assert any("is skipped: OPENAI_API_KEY is not set" in str(warning) for warning in found.warnings)


@pytest.mark.parametrize("pasted", ["sk-SEEDEDseeded123", "gsk_SEEDEDseededSEEDEDseeded1234"])
def test_a_key_in_the_place_of_its_variable_s_name_is_never_repeated(good: Path, pasted: str) -> None:
    """One that could be a name is a variable that is not set; the other is a fault. Neither is shown."""
    (good / "providers.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: ProviderConfig\nspec:\n  providers:\n"
        f"    openai: {{type: openai, models: [gpt-4o-mini], api_key_env: {pasted}}}\n"
    )
    agent = (good / "agents/billing.agent.yaml").read_text()
    (good / "agents/billing.agent.yaml").write_text(agent.replace("OPENAI_API_KEY", pasted))
    (good / "agents/support.agent.yaml").write_text(
        agent.replace(", api_key_env: OPENAI_API_KEY", "").replace("billing-agent", "support-agent")
    )
    found = loaded(good)
    said = [*map(str, found.every_fault()), *map(str, found.warnings)]
    said += [block.skipped for agent in found.agents.values() for block in agent.spec.model.blocks()]
    assert not any("SEEDED" in one for one in said)
    if pasted.startswith("sk-"):
        places = [(Path(f.file).name, f.line, f.key) for f in found.every_fault()]
        assert places == [
            ("billing.agent.yaml", 9, "spec.model.fallback[0].api_key_env"),
            ("providers.yaml", 5, "spec.providers.openai.api_key_env"),
        ]
        assert all("looks like a key" in f.message for f in found.every_fault())
    else:
        assert "the variable that api_key_env names is not set" in said


def test_a_key_in_the_place_of_its_file_is_never_repeated(good: Path) -> None:
    agent = (good / "agents/billing.agent.yaml").read_text()
    keyed = agent.replace("api_key_env: OPENAI_API_KEY", "api_key_file: sk-SEEDEDseeded123")
    (good / "agents/billing.agent.yaml").write_text(keyed)
    said = [*map(str, (found := loaded(good)).every_fault()), *map(str, found.warnings)]
    assert not any("SEEDED" in one for one in said)
    assert any(
        "is skipped: the file that api_key_file names cannot be read: No such file or directory" in one
        for one in said
    )


# -- files that are no YAML ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is not UTF-8 text"),
        ("kind: Agent\nx: é\n".encode("latin-1"), ":2:4: is not UTF-8 text"),
        (b"x" * (MAX_BYTES + 1), "is larger than"),
        (b"[]", "must be a mapping"),
        (b"just text", "must be a mapping"),
        (b"\x00" * 100, "control characters"),
    ],
)
def test_whatever_a_file_holds_is_a_fault_of_that_file(good: Path, raw: bytes, message: str) -> None:
    (good / SUPPORT).write_bytes(raw)
    (fault,) = loaded(good).broken["support"]
    assert message in str(fault)


def test_a_file_that_cannot_be_opened_is_a_fault(good: Path) -> None:
    (good / SUPPORT).unlink()
    (good / SUPPORT).mkdir()
    assert "cannot be read: " in str(loaded(good).broken["support"][0])


def test_a_byte_order_mark_is_no_fault(good: Path) -> None:
    (good / SUPPORT).write_bytes(b"\xef\xbb\xbf" + AGENT.encode())
    assert loaded(good).every_fault() == ()


def test_a_pipe_in_the_place_of_a_file_is_a_fault_and_nobody_waits_for_it(good: Path) -> None:
    """Whatever is no regular file is named; it is not even read."""
    os.mkfifo(good / "agents" / "pipe.agent.yaml")
    assert [str(fault).rpartition("/")[2] for fault in loaded(good).every_fault()] == [
        "pipe.agent.yaml: is not a regular file"
    ]


def test_files_in_folders_below_are_warned_about(good: Path) -> None:
    """An agent in `agents/sub/` is not read; those of hidden folders are what links lead to."""
    for folder in ("sub", "sub/deeper", "..data"):
        (good / "agents" / folder).mkdir()
        (good / "agents" / folder / "x.agent.yaml").write_text("kind: Agent")
    said = [str(warning).replace(f"{good}/", "") for warning in loaded(good).warnings]
    assert [warning for warning in said if "x.agent.yaml" in warning] == [
        f"agents/{folder}/x.agent.yaml: is not read. It must be in agents/ itself."
        for folder in ("sub/deeper", "sub")
    ]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("99999999999999999999", "must be a number of at most 64 bits. Put text in quotes."),
        (".inf", "must be a finite number. Put text in quotes."),
        (".NaN", "must be a finite number. Put text in quotes."),
        ("3.5", "must be a whole number, not a decimal number"),
    ],
)
def test_a_number_that_does_not_fit_is_one_fault_that_says_why(good: Path, value: str, message: str) -> None:
    """Nothing follows from it: the number is no text, and a number with a point is a number."""
    path = good / SUPPORT
    document = yaml.safe_load(path.read_text())
    document["spec"].setdefault("orchestration", {})["max_iterations"] = "NUMBER"
    path.write_text(yaml.safe_dump(document).replace("NUMBER", value))
    [said] = [str(fault) for fault in loaded(good).every_fault()]
    assert said.endswith(f"spec.orchestration.max_iterations: {message}")


def test_a_number_that_is_none_is_a_fault_where_a_plugin_takes_anything_too(good: Path) -> None:
    path = good / SUPPORT
    path.write_text(path.read_text().replace("temperature: 0.3", "temperature: .inf"))
    [said] = [str(fault) for fault in loaded(good).every_fault()]
    assert said.endswith(
        "spec.model.primary.parameters.temperature: must be a finite number. Put text in quotes."
    )


MODEL = "model: {primary: {provider: embedded}}"
PRICED = "prices: {m: {input_per_million: 1}}"
UNPRICED = "provider: openai, model: m, endpoint: http://127.0.0.1:9"


@pytest.mark.parametrize("budget", ["per_run", "per_session", "per_principal_daily"])
@pytest.mark.parametrize(
    ("spec", "unknown"),
    [
        (f"model: {{primary: {{{UNPRICED}}}}}", True),
        (f"model: {{primary: {{{UNPRICED}, {PRICED}}}}}", False),
        (f"model: {{primary: {{provider: embedded}}, fallback: {{{UNPRICED}}}}}", True),
        (f"model: {{primary: {{provider: embedded}}, roles: {{judge: {{primary: {{{UNPRICED}}}}}}}}}", True),
        ("model: {primary: {provider: embedded}}", False),
        ("model: {primary: {provider: ollama, model: m}}", False),
        ("model: {primary: {provider: openai, model: gpt-4o-mini}}", False),
        (
            f"{MODEL}\n  orchestration: {{pattern: parallel_fan_out, branches: [{{model: {{{UNPRICED}}}}}]}}",
            True,
        ),
    ],
)
def test_dollars_of_a_model_whose_price_nobody_knows_are_no_budget(
    tmp_path: Path, budget: str, spec: str, unknown: bool
) -> None:
    (tmp_path / "agents").mkdir()
    head = "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: a}\nspec:\n"
    text = f"{head}  {spec}\n  budgets: {{{budget}: {{cost_usd: 1.0}}}}\n"
    (tmp_path / "agents" / "a.agent.yaml").write_text(text)
    faults = [str(fault) for fault in load(tmp_path, env=ENV, resolver=Plugins()).every_fault()]
    assert len(faults) == unknown
    for fault in faults:
        assert (
            f"spec.budgets.{budget}.cost_usd: has no effect on models without a price: `openai/m`." in fault
        )


@pytest.mark.parametrize(
    "calls",
    [
        "tools: [{name: t, type: agent, agent: between}]",
        "orchestration: {pattern: supervisor, workers: [between]}",
        "orchestration: {pattern: swarm, agents: [between]}",
    ],
)
def test_dollars_of_agents_below_count_too_and_every_model_without_a_price_is_named(
    tmp_path: Path, calls: str
) -> None:
    (tmp_path / "agents").mkdir()
    second = UNPRICED.replace("model: m", "model: n")
    specs = {
        "above": f"{MODEL}\n  {calls}\n  budgets: {{per_run: {{cost_usd: 1.0}}}}",
        "between": f"{MODEL}\n  tools: [{{name: t, type: agent, agent: below}}]",
        "below": f"model: {{primary: {{{UNPRICED}}}, fallback: {{{second}}}}}",
    }
    for name, spec in specs.items():
        head = f"apiVersion: astromesh/v1\nkind: Agent\nmetadata: {{name: {name}}}\nspec:\n"
        (tmp_path / "agents" / f"{name}.agent.yaml").write_text(f"{head}  {spec}\n")
    faults = [str(fault) for fault in load(tmp_path, env=ENV, resolver=Plugins()).every_fault()]
    assert len(faults) == 1
    assert "above.agent.yaml" in faults[0]
    assert "without a price: `openai/m` of the agent below, `openai/n` of the agent below." in faults[0]
