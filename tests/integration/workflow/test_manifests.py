"""A workflow's folder: every fault at once, with file, place, rule and what to do (E8 to E17, E30, E31)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.config.workflow_folder import FILES, json_schema_of
from astromesh.errors import DAGValidationError, InvalidWorkflow, ManifestLoadError, SchemaValidationError
from astromesh.workflow import Engine, load_project
from astromesh.workflow.project import check_folder
from astromesh.workflow.validation import KnownNames

SAMPLE = Path(__file__).parents[3] / "config" / "workflows" / "contract_review"
Edges = list[tuple[str, str] | tuple[str, str, str]]
NOBODY = KnownNames(agents=())


def written(folder: Path, nodes: list[dict[str, Any]], edges: Edges, **files: Any) -> Path:
    """A folder with a workflow; nodes are deterministic with no context unless they say else."""
    folder.mkdir(exist_ok=True)
    usual = {"kind": "deterministic", "context": "none"}
    pairs = [{"from": e[0], "to": e[1], **({"label": e[2]} if len(e) == 3 else {})} for e in edges]
    workflow = {
        "version": 1,
        "workflow": folder.name,
        "nodes": [{**usual, **n} for n in nodes],
        "edges": pairs,
    }
    for name, value in {"workflow": workflow, **files}.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(value, sort_keys=False))
    return folder


def start(id: str = "s", **more: Any) -> dict[str, Any]:
    return {"id": id, "role": "start", "default": True, **more}


def node(id: str, role: str = "linear", **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, **more}


S, E = start(), node("e", "exit")
LINE: Edges = [("s", "x"), ("x", "e")]


def rules(folder: Path, known: KnownNames = NOBODY) -> list[str]:
    return [fault.rule for fault in check_folder(folder, known, {}).faults]


def test_a_sound_folder_has_no_fault(tmp_path: Path) -> None:
    assert rules(written(tmp_path / "w", [S, node("x"), E], LINE)) == []


TWO: Edges = [("s", "d"), ("d", "x", "one"), ("d", "y", "two"), ("x", "e"), ("y", "e")]
D = node("d", "decision", op="operator:setitem")

STRUCTURES: list[tuple[str, list[dict[str, Any]], Edges, str]] = [
    ("E31 an id is defined once", [S, node("x"), node("x"), E], LINE, "duplicate_id"),
    ("an edge names a node", [S, node("x"), E], [*LINE, ("x", "nobody")], "unknown_node"),
    ("E11 a default start", [node("s", "start"), node("x"), E], LINE, "no_default_start"),
    (
        "E11 only one default start",
        [S, start("s2"), node("x"), E],
        [*LINE, ("s2", "e")],
        "two_default_starts",
    ),
    ("E14 a start", [node("x"), E], [("x", "e")], "no_start"),
    ("E14 an exit", [S, node("x")], [("s", "x")], "no_exit"),
    (
        "E8 no parallel edges",
        [S, node("b", "branch"), node("m", "merge"), E],
        [("s", "b"), ("b", "m"), ("b", "m"), ("m", "e")],
        "parallel_edge",
    ),
    (
        "E9 labels are unique",
        [S, D, node("x"), node("y"), E],
        [("s", "d"), ("d", "x", "one"), ("d", "y", "one"), ("x", "e"), ("y", "e")],
        "duplicate_label",
    ),
    (
        "E10 every part has a start and an exit",
        [S, node("x"), E, node("y"), node("z")],
        [*LINE, ("y", "z")],
        "component",
    ),
    ("E10 every stage is reached", [S, node("x"), E, node("y")], [*LINE, ("y", "e")], "unreachable"),
    ("E13 no cycles", [S, node("m", "merge"), node("x"), E], [("s", "m"), ("m", "x"), ("x", "m")], "cycle"),
    ("E13 no self-loops", [S, node("x"), E], [*LINE, ("x", "x")], "cycle"),
    (
        "E30 a merge has two inbound edges",
        [S, node("p", "split"), node("m", "merge"), E],
        [("s", "p"), ("p", "m"), ("m", "e")],
        "inbound_degree",
    ),
    (
        "E31 a linear has one inbound edge",
        [S, D, node("x"), E],
        [("s", "d"), ("d", "x", "one"), ("d", "x", "two"), ("x", "e")],
        "inbound_degree",
    ),
    (
        "a branch has two outbound edges",
        [S, node("b", "branch"), E],
        [("s", "b"), ("b", "e")],
        "outbound_degree",
    ),
    ("a start has one outbound edge", [S, node("x"), E], [*LINE, ("s", "e")], "outbound_degree"),
    ("an exit has none", [S, node("x"), E, node("y")], [*LINE, ("e", "y"), ("y", "e")], "outbound_degree"),
    (
        "start and exit are deterministic",
        [start(kind="agent", agent="a"), node("x"), E],
        LINE,
        "must_be_deterministic",
    ),
    ("kind agent needs an agent", [S, node("x", kind="agent"), E], LINE, "missing_agent"),
    (
        "op is for deterministic nodes",
        [S, node("x", kind="agent", agent="a", op="os:getcwd"), E],
        LINE,
        "wrong_kind",
    ),
    ("always_fail is for exits", [S, node("x", always_fail=True), E], LINE, "wrong_role"),
    ("split settings are for splits", [S, node("x", split={}), E], LINE, "wrong_role"),
    ("exits have no tools", [S, node("x"), node("e", "exit", tools=["t"])], LINE, "exit_with_tools"),
    (
        "E42 an exit cannot continue",
        [S, node("x"), node("e", "exit", continue_on_failure=True)],
        LINE,
        "cannot_continue",
    ),
    (
        "E40 a decision continues only by a default edge",
        [S, {**D, "continue_on_failure": True}, node("x"), node("y"), E],
        TWO,
        "cannot_continue",
    ),
    (
        "a default edge exists",
        [S, {**D, "default_edge": "three"}, node("x"), node("y"), E],
        TWO,
        "unknown_edge",
    ),
    ("E43 on_failure names an error exit", [S, node("x", on_failure="e"), E], LINE, "no_error_exit"),
    (
        "a merge with op says strategy op",
        [S, D, node("x"), node("y"), node("m", "merge", op="operator:setitem"), E],
        [("s", "d"), ("d", "x", "one"), ("d", "y", "two"), ("x", "m"), ("y", "m"), ("m", "e")],
        "merge_strategy",
    ),
]


@pytest.mark.parametrize(
    ("nodes", "edges", "rule"), [s[1:] for s in STRUCTURES], ids=[s[0] for s in STRUCTURES]
)
def test_each_rule_of_structure(nodes: list[dict[str, Any]], edges: Edges, rule: str, tmp_path: Path) -> None:
    """Named as in the table; the fault says its rule, and stands at a line of workflow.yaml."""
    folder = written(tmp_path / "w", nodes, edges)
    found = [f for f in check_folder(folder, KnownNames(agents=("a",)), {}).faults if f.rule == rule]
    assert found, rules(folder)
    assert all(
        fault.file.endswith("workflow.yaml") and fault.line and fault.column and fault.key for fault in found
    )


def test_e8_a_decision_may_lead_to_an_exit_by_two_labels(tmp_path: Path) -> None:
    edges: Edges = [("s", "d"), ("d", "e", "one"), ("d", "e", "two")]
    assert rules(written(tmp_path / "w", [S, D, E], edges)) == []


def test_e10_disconnected_parts_are_allowed(tmp_path: Path) -> None:
    nodes = [S, node("x"), E, node("s2", "start"), node("e2", "exit")]
    assert rules(written(tmp_path / "w", nodes, [*LINE, ("s2", "e2")])) == []


def test_e13_the_message_names_the_cycle(tmp_path: Path) -> None:
    nodes = [S, node("m", "merge"), node("x"), node("y"), E]
    folder = written(tmp_path / "w", nodes, [("s", "m"), ("m", "x"), ("x", "y"), ("y", "m")])
    (fault,) = [f for f in check_folder(folder).faults if f.rule == "cycle"]
    assert "m → x → y → m" in fault.message


def test_e31_the_hint_shows_another_occurrence(tmp_path: Path) -> None:
    edges: Edges = [("s", "d"), ("d", "x", "one"), ("d", "x", "two"), ("x", "e")]
    found = check_folder(written(tmp_path / "w", [S, D, node("x"), E], edges)).faults
    assert any("x#2" in fault.hint for fault in found)


# -- references ----------------------------------------------------------------------------------------------

REFERENCES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("unknown_agent", {"kind": "agent", "agent": "nobody"}, {}),
    ("unknown_tool", {"tools": ["nothing"]}, {}),
    ("unknown_schema", {"schema_in": "nothing"}, {}),
    ("unknown_context", {"context": "nothing"}, {}),
    ("unknown_op", {"op": "nowhere:nothing"}, {}),
    ("unknown_op", {"op": "os:nothing"}, {}),
    ("wrong_arguments", {"op": "os:getcwd"}, {}),
    ("invalid_schema", {"schema_out": {"type": "nothing"}}, {}),
    ("invalid_schema", {"schema_in": {"pattern": "(?=a)b"}}, {}),  # which a run could not compile
    ("unknown_model", {}, {"agents": {"agents": [{"id": "a", "model": "nothing"}]}}),
    (
        "unknown_credential",
        {},
        {"providers": {"providers": [{"id": "m", "adapter": "openai", "credential": "c"}]}},
    ),
    (
        "unknown_model",
        {},
        {"providers": {"providers": [{"id": "m", "adapter": "openai", "fallback": ["n"]}]}},
    ),
    ("unknown_adapter", {}, {"providers": {"providers": [{"id": "m", "adapter": "carrier_pigeon"}]}}),
    (
        "unknown_node",
        {},
        {
            "policy": {
                "policies": [
                    {
                        "name": "p",
                        "rules": [
                            {"target": "context", "target_id": "*", "nodes": ["nobody"], "action": "deny"}
                        ],
                    }
                ]
            }
        },
    ),
    (
        "unkeepable",
        {},
        {"tools": {"tools": [{"id": "t", "type": "python", "entrypoint": "os:getcwd", "root": "."}]}},
    ),
    ("duplicate_id", {}, {"tools": {"tools": [{"id": "t", "entrypoint": "os:getcwd"}] * 2}}),
]


@pytest.mark.parametrize(("rule", "more", "files"), REFERENCES)
def test_e15_what_does_not_exist_is_a_fault_at_load(
    rule: str, more: dict[str, Any], files: dict[str, Any], tmp_path: Path
) -> None:
    folder = written(tmp_path / "w", [S, node("x", **more), E], LINE, **files)
    assert rule in rules(folder, KnownNames((), (), ("openai",), ("react",)))


def test_e17_other_files_are_needed_only_where_something_refers_to_them(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", [S, node("x"), E], LINE, agents={"agents": None}, tools={}, memory={})
    assert rules(folder) == []


def test_e14_edges_without_a_value_are_an_empty_list(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", [S, E], [])
    file = folder / "workflow.yaml"
    file.write_text(file.read_text().replace("edges: []", "edges:"))
    assert "invalid_value" not in rules(folder) and "outbound_degree" in rules(folder)


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "right"), [("execution.yaml", "scheduler.yaml"), ("persistent_memory.yaml", "memory.yaml")]
)
def test_other_documents_files_are_rejected_with_the_right_name(
    name: str, right: str, tmp_path: Path
) -> None:
    folder = written(tmp_path / "w", [S, node("x"), E], LINE)
    (folder / name).write_text("a: 1\n")
    (fault,) = check_folder(folder).faults
    assert fault.rule == "rejected_file" and right in fault.message and fault.file.endswith(name)


@pytest.mark.parametrize(("version", "what"), [(2, "install"), (0, "write `version: 1`")])
def test_an_unknown_version_names_the_migration(tmp_path: Path, version: int, what: str) -> None:
    folder = written(tmp_path / "w", [S, node("x"), E], LINE)
    file = folder / "workflow.yaml"
    file.write_text(file.read_text().replace("version: 1", f"version: {version}"))
    (fault,) = check_folder(folder).faults
    assert (fault.rule, fault.line, fault.column) == ("unknown_version", 1, 10)
    assert fault.hint.startswith("migration: ") and what in fault.hint


async def test_e30_a_merge_behind_a_split_needs_two_edges_which_two_occurrences_are(tmp_path: Path) -> None:
    """One edge is a fault, in items mode too; the items go round over two occurrences of one node."""
    split = node("p", "split", split={"mode": "items"})
    nodes = [S, split, node("x"), node("m", "merge"), E]
    one: Edges = [("s", "p"), ("p", "m"), ("m", "e")]
    assert rules(written(tmp_path / "w", [n for n in nodes if n["id"] != "x"], one)) == ["inbound_degree"]
    two: Edges = [("s", "p"), ("p", "x"), ("p", "x#2"), ("x", "m"), ("x#2", "m"), ("m", "e")]
    async with Engine.load(written(tmp_path / "w2", nodes, two)) as engine:
        result = await engine.run({"subtask_inputs": [1, 2, 3]})
    assert (result.status, result.output) == ("success", [1, 3, 2])


def test_e16_all_faults_are_told_at_once_with_their_places(tmp_path: Path) -> None:
    """A typo, a wrong type, a missing tool and a fault of structure, over two files."""
    folder = written(
        tmp_path / "w",
        [S, node("x", contxt="none", timeout_s="soon", tools=["nothing"]), E],
        [*LINE, ("x", "x")],
        memory={"memory": {"task_store": {"type": "papyrus"}}},
    )
    with pytest.raises(InvalidWorkflow) as caught:
        load_project(folder)
    faults = caught.value.faults
    assert {f.rule for f in faults} >= {"unknown_key", "invalid_value", "unknown_tool", "cycle"}
    assert {Path(f.file).name for f in faults} == {"workflow.yaml", "memory.yaml"}
    assert all(re.match(r".+\.yaml:\d+:\d+: ", str(fault)) for fault in faults)
    typo = next(f for f in faults if f.rule == "unknown_key")
    assert "Did you mean `context`" in typo.hint


def test_e16_keys_that_begin_with_x_are_free(tmp_path: Path) -> None:
    nodes = [S, node("x", **{"x-owner": "legal"}), E]
    assert rules(written(tmp_path / "w", nodes, LINE, memory={"x-note": [1], "memory": {"x-why": {}}})) == []


@pytest.mark.parametrize(
    ("kind", "nodes", "edges"),
    [
        (ManifestLoadError, [S, node("x", schema_in="nothing"), E], LINE),
        (SchemaValidationError, [S, node("x", timeout_s=-1), E], LINE),
        (DAGValidationError, [S, node("x"), E], [*LINE, ("x", "x")]),
    ],
)
def test_e16_the_type_says_what_kind_of_fault_is_the_gravest(
    kind: type[InvalidWorkflow], nodes: list[dict[str, Any]], edges: Edges, tmp_path: Path
) -> None:
    with pytest.raises(kind):
        load_project(written(tmp_path / "w", nodes, edges))


def test_a_schema_that_is_no_json_is_a_fault_at_its_place(tmp_path: Path) -> None:
    folder = written(tmp_path / "w", [S, node("x"), E], LINE)
    (folder / "schemas").mkdir()
    (folder / "schemas" / "a.json").write_text('{\n "type": oops}')
    (fault,) = check_folder(folder).faults
    assert (fault.rule, fault.line) == ("unreadable", 2) and fault.file.endswith("schemas/a.json")


def test_a_folder_that_is_not_there_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(ManifestLoadError, match="the folder does not exist"):
        load_project(tmp_path / "nowhere")


def test_e5_e7_warnings_say_what_deserves_a_look(tmp_path: Path) -> None:
    """An XOR join with strategy list; an arm that bypasses a merge."""
    nodes = [S, D, node("x"), node("y"), node("m", "merge"), E]
    edges: Edges = [("s", "d"), ("d", "x", "1"), ("d", "y", "2"), ("x", "m"), ("y", "m"), ("m", "e")]
    checked = check_folder(written(tmp_path / "w", nodes, edges))
    assert [w.rule for w in checked.warnings] == ["xor_join"] and not checked.faults
    nodes = [S, node("b", "branch"), node("x"), node("y"), node("z"), node("m", "merge"), E]
    edges = [("s", "b"), *(("b", n) for n in "xyz"), ("x", "m"), ("y", "m"), ("z", "e"), ("m", "e")]
    assert [w.rule for w in check_folder(written(tmp_path / "w2", nodes, edges)).warnings] == [
        "bypassed_merge"
    ]


# -- the whole -----------------------------------------------------------------------------------------------


async def test_e63_a_run_keeps_the_project_that_it_started_with(tmp_path: Path) -> None:
    """Files changed on disk, the operations too, change nothing for an engine that is loaded."""
    folder = written(tmp_path / "w", [S, node("x", op="ops:f"), E], LINE)
    (folder / "ops.py").write_text("async def f(input, context, tools):\n    return 'old'\n")
    engine = Engine.load(folder, env={})
    await engine.open()
    assert (await engine.run()).output == "old"
    (folder / "ops.py").write_text("async def f(input, context, tools):\n    return 'new one'\n")
    assert (await engine.run()).output == "old"
    assert (await Engine.load(folder, env={}).run()).output == "new one"


async def test_e62_a_missing_secret_fails_the_stage_that_needs_it(tmp_path: Path) -> None:
    """Not the load; and neither error nor history holds what was looked for."""
    folder = tmp_path / "contract_review"
    shutil.copytree(SAMPLE, folder)
    async with Engine.load(folder, env={}) as engine:
        result = await engine.run({"text": "One page NDA"})
    assert result.error and (result.error["code"], result.error["stage"]) == ("missing_key", "triage")
    assert "LLM_API_KEY" in result.error["message"]


def test_e62_a_missing_secret_is_a_warning_at_load(tmp_path: Path) -> None:
    """Of each model whose credential is not there; credentials that no model has are nobody's concern."""
    without = check_folder(SAMPLE, env={}).warnings
    assert [(w.rule, w.key) for w in without] == [
        ("missing_secret", "providers[0].credential"), ("missing_secret", "providers[1].credential"),
    ]  # fmt: skip
    assert check_folder(SAMPLE, env={"LLM_API_KEY": "k"}).warnings == ()


async def test_e62_secrets_stand_in_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "contract_review"
    shutil.copytree(SAMPLE, folder)
    providers = (folder / "providers.yaml").read_text().replace("http://llm:8080", "http://127.0.0.1:9")
    (folder / "providers.yaml").write_text(providers)
    async with Engine.load(folder, env={"LLM_API_KEY": "very-secret-key"}) as engine:
        result = await engine.run({"text": "One page NDA"})
    assert result.error and result.error["code"] == "provider_error"
    assert "very-secret-key" not in str(result.with_trace()) + repr(engine.project)


@pytest.mark.parametrize("name", FILES)
def test_every_file_has_a_json_schema_with_described_keys(name: str) -> None:
    schema = json_schema_of(name)
    assert schema["$schema"].endswith("2020-12/schema") and schema["additionalProperties"] is False
