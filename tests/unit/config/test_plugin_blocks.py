"""Plugin blocks: the plugin's own options decide, at the place where they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astromesh.config.base import Node
from astromesh.config.file import BindingContext, ConfigFile
from astromesh.config.providers import ProviderEntryNode
from tests.unit.config.samples import ENV, OTHERS, FewPlugins, file_of, told

HEAD = "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: a}\nspec:\n"
MODEL = "  model: {primary: {provider: embedded}}\n"


def entries_of(text: str, env: dict[str, str] | None = None) -> dict[str, ProviderEntryNode]:
    """The entries of a providers.yaml."""
    head = "apiVersion: astromesh/v1\nkind: ProviderConfig\nspec:\n  providers:\n"
    file = file_of("ProviderConfig", head + text, env)
    assert told(file) == []
    nodes = dict(file.root.children("spec", "providers"))
    return {
        name: ProviderEntryNode(record, nodes[name]) for name, record in file.manifest.spec.providers.items()
    }


def agent_of(
    spec: str, providers: str = "", env: dict[str, str] | None = None, folder: Path = Path("nowhere")
) -> ConfigFile:
    """An agent with its blocks bound."""
    file = file_of("Agent", HEAD + spec, env)
    file.bind(
        BindingContext(folder, env or {}, FewPlugins(), entries_of(providers, env) if providers else {})
    )
    return file


def sound(*args: Any, **kwargs: Any) -> Any:
    file = agent_of(*args, **kwargs)
    assert told(file) == []
    return file.manifest.spec


# -- tools, rules, memory, patterns --------------------------------------------------------------------------


def test_a_tools_own_keys_become_its_options() -> None:
    spec = sound(MODEL + "  tools: [{name: kb, type: rag, pipeline: docs, top_k: 3, effect: write}]\n")
    assert spec.tools[0].options.pipeline == "docs"
    assert spec.tools[0].options.top_k == 3
    assert spec.tools[0].effective_effect == "write"


@pytest.mark.parametrize(
    ("block", "key", "at", "message"),
    [
        ("{name: k, type: rga, pipeline: d}", "type", "rga", "unknown tool type `rga`. Did you mean `rag`"),
        ("{name: k, type: rag, pipline: d}", "pipline", "pipline", "Did you mean `pipeline`?"),
        ("{name: k, type: rag, pipline: d}", "pipeline", "{", "required key is missing"),
        ("{name: k, type: rag, pipeline: d, top_k: 0}", "top_k", "0", "must be at least 1"),
        ("{name: k, type: rag, pipeline: d, efect: read}", "efect", "efect", "Did you mean `effect`?"),
        ("{name: w, type: webhook, endpoint: ftp}", "endpoint", "ftp", "ftp is no http address"),
        ("{name: w, type: webhook, endpoint: ftp, method: PUT}", "method", "PUT", "must be 'GET' or 'POST'"),
        ("{name: n, type: internal, function: my.now}", "function", "my.now", ". The function as"),
    ],
)  # fmt: skip
def test_a_fault_in_a_plugins_keys_stands_at_the_key(block: str, key: str, at: str, message: str) -> None:
    before = "  tools: ["
    lines = told(agent_of(f"{MODEL}{before}{block}]\n"))
    place = f"x.yaml:6:{len(before) + block.index(at) + 1}: spec.tools[0].{key}: "
    assert any(line.startswith(place) and message in line for line in lines), lines


def test_a_plugin_that_ignores_unknown_keys_is_not_believed() -> None:
    (line,) = told(agent_of(MODEL + "  guardrails: {input: [{type: careless, levl: 2}]}\n"))
    assert "spec.guardrails.input[0].levl: unknown key `levl`. Did you mean `level`?" in line


def test_a_missing_extra_says_what_to_install() -> None:
    (line,) = told(agent_of(MODEL + "  memory: {conversational: {backend: postgres}}\n"))
    assert "spec.memory.conversational.backend" in line
    assert "pip install astromesh[postgres]" in line


def test_the_keys_of_a_conversation_go_to_the_store_and_to_the_strategy() -> None:
    block = "{backend: sqlite, strategy: summary, keep_turns: 4, path: x.db, ttl: 60}"
    chat = sound(MODEL + f"  memory: {{conversational: {block}}}\n").memory.conversational
    assert (chat.options.path, chat.strategy_options.keep_turns, chat.ttl) == ("x.db", 4, 60)


def test_a_key_of_another_strategy_is_no_known_key() -> None:
    block = "{backend: sqlite, strategy: summary, max_turns: 4}"
    (line,) = told(agent_of(MODEL + f"  memory: {{conversational: {block}}}\n"))
    assert "spec.memory.conversational.max_turns: unknown key `max_turns`" in line


@pytest.mark.parametrize("block", ["max_replans: 3", "plan_and_execute: {max_replans: 3}"])
def test_a_patterns_keys_stand_beside_its_name_or_below_it(block: str) -> None:
    spec = sound(MODEL + f"  orchestration: {{pattern: plan_and_execute, {block}, max_iterations: 4}}\n")
    assert spec.orchestration.options.max_replans == 3


def test_a_patterns_key_cannot_stand_in_both_places() -> None:
    block = "{pattern: plan_and_execute, max_replans: 3, plan_and_execute: {max_replans: 2}}"
    (line,) = told(agent_of(MODEL + f"  orchestration: {block}\n"))
    assert "is also set beside `pattern: plan_and_execute`" in line


def test_the_name_of_a_graph_is_a_key_and_no_block() -> None:
    assert (
        sound(MODEL + "  orchestration: {pattern: graph, graph: flow}\n").orchestration.options.graph
        == "flow"
    )


def test_a_variable_becomes_what_the_plugins_field_asks_for() -> None:
    spec = sound(
        MODEL + "  tools: [{name: kb, type: rag, pipeline: '${P}', top_k: '${K}'}]\n",
        env={"P": "7", "K": "7"},
    )
    assert (spec.tools[0].options.pipeline, spec.tools[0].options.top_k) == ("7", 7)


def test_what_a_variable_holds_is_not_repeated_in_a_fault() -> None:
    webhook = "{name: w, type: webhook, endpoint: '${URL}'}"
    search = "{name: k, type: rag, pipeline: x, top_k: '${URL}'}"
    spec = f"{MODEL}  tools: [{webhook}, {search}]\n"
    lines = told(agent_of(spec, env={"URL": "s3cr3t-token"}))
    assert len(lines) == 2
    assert "s3cr3t" not in "".join(lines)
    assert all("The value comes from URL" in line for line in lines)


# -- models --------------------------------------------------------------------------------------------------

OPENAI = """\
    openai:
      {type: openai, endpoint: "http://gateway", timeout: 5, api_key: sk-entry, retries: 4,
       parameters: {temperature: 1, seed: 2}, models: [small, big], quality: {big: 70},
       prices: {small: {input_per_million: 1}, big: {input_per_million: 9}}}
"""


def block_of(text: str, **kwargs: Any) -> Any:
    return sound(f"  model: {{primary: {text}}}\n", **kwargs).model.primary.block


def test_a_block_and_its_entry_are_one_and_the_block_wins() -> None:
    block = block_of(
        "{provider: openai, model: big, timeout: 9, parameters: {seed: 7},"
        " prices: {big: {input_per_million: 8}}}",
        providers=OPENAI,
    )
    options = block.options
    assert (block.plugin, block.name, block.skipped) == ("openai", "openai/big", "")
    assert (options.name, options.model, options.endpoint) == ("openai", "big", "http://gateway")
    assert (options.timeout, options.parameters, options.retries) == (9, {"temperature": 1, "seed": 7}, 4)
    assert options.api_key.get_secret_value() == "sk-entry"
    assert (block.price.input_per_million, block.quality) == (8, 70)


def test_the_first_model_of_an_entry_is_the_default() -> None:
    assert block_of("{provider: openai}", providers=OPENAI).model == "small"


def test_a_model_that_the_entry_does_not_list_is_a_warning() -> None:
    file = agent_of("  model: {primary: {provider: openai, model: bigg}}\n", providers=OPENAI)
    assert told(file) == []
    assert ". Did you mean `big`?" in str(file.warnings[0])


def test_a_plugin_can_be_named_without_an_entry() -> None:
    block = block_of("{provider: openai, model: m, api_key_env: KEY}", env={"KEY": " sk-1\n"})
    assert (block.plugin, block.options.api_key.get_secret_value()) == ("openai", "sk-1")


def test_an_unknown_provider_lists_entries_and_plugins() -> None:
    (line,) = told(
        agent_of("  model: {primary: {provider: mistral}}\n", providers=OPENAI.replace("openai:", "own:", 1))
    )
    assert "unknown provider `mistral`. Known: `embedded`, `ollama`, `openai`, `own`, `usual`." in line


@pytest.mark.parametrize("env", [{}, {"KEY": ""}, {"KEY": "  "}])
def test_a_model_whose_key_is_not_set_is_skipped_with_a_warning(env: dict[str, str]) -> None:
    file = agent_of(
        "  model:\n"
        "    primary: {provider: openai, model: m, api_key_env: KEY}\n"
        "    fallback: {provider: embedded}\n",
        env=env,
    )
    model = file.manifest.spec.model
    assert told(file) == []
    assert model.primary.block.skipped == "KEY is not set"
    assert [block.name for block in model.usable()] == ["embedded"]
    assert "is skipped: KEY is not set" in str(file.warnings[0])


@pytest.mark.parametrize("key", ["…", "sk-1\nX-Evil: 1", "clé"])
@pytest.mark.parametrize("written", ["api_key_env: KEY", "api_key: '${KEY}'"])
def test_a_model_whose_key_no_service_could_take_is_skipped_and_its_variable_named(
    key: str, written: str
) -> None:
    file = agent_of(f"  model: {{primary: {{provider: openai, model: m, {written}}}}}\n", env={"KEY": key})
    model = file.manifest.spec.model
    assert told(file) == []
    assert (
        model.primary.block.skipped
        == "KEY contains characters that no key has; only printable ASCII is allowed"
    )
    assert model.usable() == ()
    place = f"x.yaml:5:{len('  model: {primary: ') + 1}: spec.model.primary: is skipped: KEY contains "
    assert str(file.warnings[0]).startswith(place)


def test_a_key_without_its_unit_is_told_which_was_meant() -> None:
    spec = MODEL + "  tools: [{name: k, type: rag, pipeline: d, timeot: 3}]\n"
    assert ". Did you mean `timeout_seconds`?" in told(agent_of(spec))[0]


def test_a_key_in_the_file_that_is_none_is_never_shown() -> None:
    file = agent_of("  model: {primary: {provider: openai, model: m, api_key: 'sécret'}}\n")
    assert file.manifest.spec.model.primary.block.skipped.startswith("api_key contains characters")
    assert not any("sécret" in str(one) for one in file.warnings)


@pytest.mark.parametrize(("written", "named"), [("'${KEY:-}'", "KEY"), ("''", "api_key")])
def test_a_model_with_an_empty_key_is_skipped(written: str, named: str) -> None:
    file = agent_of(f"  model: {{primary: {{provider: openai, model: m, api_key: {written}}}}}\n")
    assert file.manifest.spec.model.primary.block.skipped == f"{named} is empty"


def test_a_key_file_that_holds_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("sk-…\n")
    file = agent_of("  model: {primary: {provider: openai, model: m, api_key_file: key}}\n", folder=tmp_path)
    assert file.manifest.spec.model.primary.block.skipped.startswith("the file key contains characters")


@pytest.mark.parametrize(
    ("block", "skipped"),
    [
        ("{provider: usual, model: m}", "USUAL_KEY is not set"),
        ("{provider: usual, model: m, endpoint: 'https://usual.example/v1/'}", "USUAL_KEY is not set"),
        ("{provider: usual, model: m, endpoint: 'https://own.example'}", ""),
        ("{provider: usual, model: m, api_key: sk-1}", ""),
    ],
)
def test_a_block_that_names_no_key_needs_the_usual_variable_of_the_service_itself(
    block: str, skipped: str
) -> None:
    assert block_of(block).skipped == skipped
    assert block_of(block, env={"USUAL_KEY": "sk-2"}).skipped == ""


def test_the_key_of_a_block_stands_for_that_of_the_entry() -> None:
    block = block_of("{provider: openai, api_key_env: KEY}", providers=OPENAI, env={"KEY": "sk-block"})
    assert block.options.api_key.get_secret_value() == "sk-block"


def test_a_key_in_the_file_works_with_a_warning_and_a_variable_without() -> None:
    literal = agent_of("  model: {primary: {provider: openai, model: m, api_key: sk-1}}\n")
    assert "contains a key as plain text. Use api_key_env or api_key_file." in str(literal.warnings[0])
    variable = agent_of(
        "  model: {primary: {provider: openai, model: m, api_key: '${KEY}'}}\n", env={"KEY": "sk-1"}
    )
    assert told(literal) + told(variable) + [str(w) for w in variable.warnings] == []


def test_a_key_comes_from_one_place() -> None:
    (line,) = told(
        agent_of("  model: {primary: {provider: openai, model: m, api_key: a, api_key_env: KEY}}\n")
    )
    assert "spec.model.primary.api_key_env: conflicts with `api_key`" in line


def test_a_common_key_that_the_plugin_does_not_take_is_refused() -> None:
    lines = told(
        agent_of("  model: {primary: {provider: embedded, model: m, timeout: 3, api_key_env: KEY}}\n")
    )
    assert ["has no effect, because `embedded` does not accept it" in line for line in lines] == [
        True,
        True,
        True,
    ]


def test_the_plugins_own_keys_stand_beside_the_common_ones() -> None:
    assert block_of("{provider: openai, model: m, organization: org}").options.organization == "org"
    (line,) = told(agent_of("  model: {primary: {provider: openai, model: m, organisation: org}}\n"))
    assert "Did you mean `organization`?" in line


def test_embeddings_ask_for_an_embedder_by_the_entrys_type() -> None:
    block = "{backend: sqlite, embeddings: {provider: openai, model: e, dimensions: 8}}"
    semantic = sound(MODEL + f"  memory: {{semantic: {block}}}\n", providers=OPENAI).memory.semantic
    assert (semantic.embeddings.block.plugin, semantic.embeddings.options.dimensions) == ("openai", 8)


def test_roles_have_models_of_their_own() -> None:
    planner = "{primary: {provider: openai}, fallback: [{provider: embedded}]}"
    models = f"  model: {{primary: {{provider: embedded}}, roles: {{planner: {planner}}}}}\n"
    spec = sound(models, providers=OPENAI)
    assert [b.name for b in spec.model.roles["planner"].blocks()] == ["openai/small", "embedded"]


# -- secrets -------------------------------------------------------------------------------------------------


def test_no_secret_is_printed_or_dumped() -> None:
    file = agent_of(
        "  model: {primary: {provider: openai, model: m, api_key: '${OPENAI_API_KEY}'}}\n"
        "  tools: [{name: w, type: webhook, endpoint: 'http://x/${WHATSAPP_APP_SECRET}'}]\n",
        env=ENV,
    )
    channels = file_of("ChannelConfig", OTHERS["ChannelConfig"][1], ENV)
    runtime = file_of(
        "RuntimeConfig",
        "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {storage: {url: 'postgresql://u:seeded@h/d'}}\n",
    )
    block = file.manifest.spec.model.primary.block
    assert block.options.api_key.get_secret_value() == ENV["OPENAI_API_KEY"]
    for thing in (file.manifest, channels.manifest, runtime.manifest):
        for text in (repr(thing), str(thing), thing.model_dump_json(), repr(thing.model_dump()), repr(block)):
            assert "seeded" not in text
    assert "access_token" not in channels.manifest.model_dump_json()


def test_a_record_cannot_be_changed() -> None:
    spec = sound(MODEL)
    with pytest.raises(ValueError, match="frozen"):
        spec.stream = "final"


def test_nodes_of_an_entry_have_no_place_in_the_agents_file() -> None:
    node = entries_of(OPENAI)["openai"].node.detached()
    assert isinstance(node, Node)
    assert node.get("timeout").place == (0, 0)  # type: ignore[union-attr]
