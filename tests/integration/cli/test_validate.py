"""`astromesh validate`: a folder with all that is below it, one workflow, warnings, GitHub's annotations."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from astromesh.cli.commands.validate import Format, findings, report_faults
from tests.integration.agents_folder import manifest, write
from tests.integration.workflow.folders import small

MODEL = {"primary": {"provider": "embedded"}}
POSTGRES = {"conversational": {"backend": "postgres"}, "episodic": {"backend": "postgres"}}
HEAD = {"apiVersion": "astromesh/v1", "kind": "RuntimeConfig"}


def helper(folder: Path, **spec: Any) -> Path:
    return write(folder, manifest("helper", model=MODEL, **spec))


def warnings_of(folder: Path) -> list[tuple[str, str]]:
    return [(found.key, found.message) for found in findings(folder, folder).warnings]


# -- everything below the folder, and one workflow ---------------------------------------------------------


def test_a_fault_of_a_workflow_is_a_fault_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small(helper(tmp_path))
    assert report_faults(folder) == 0
    assert capsys.readouterr().out == f"{folder} is fine: 1 agent, 1 workflow.\n"
    file = folder / "workflows" / "small" / "workflow.yaml"
    file.write_text(file.read_text().replace("nodes:", "nodez:"))
    assert report_faults(folder) == 2
    assert f"{file}:" in capsys.readouterr().out


@pytest.mark.parametrize("of", ["evals", "workflows/small/evals"])
def test_a_fault_of_a_dataset_is_a_fault_of_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], of: str
) -> None:
    folder = small(helper(tmp_path))
    file = folder / of / "helper.yaml"
    file.parent.mkdir()
    file.write_text("cases:\n  - {id: one, input: Hi}\n")
    assert report_faults(folder) == report_faults(file) == 0
    file.write_text("cases:\n  - {id: one, imput: Hi}\n")
    capsys.readouterr()
    assert report_faults(folder) == report_faults(file) == 2
    assert capsys.readouterr().out.count(f"{file}:2:15: cases[0].imput: unknown key `imput`") == 2


@pytest.mark.parametrize("name", ["name", "folder", "file"])
def test_one_workflow_is_checked_when_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """By its name, its folder, or a file of it; faults of others are not told."""
    folder = small(helper(tmp_path, prompts={"system": "{{ broken"}))
    home = folder / "workflows" / "small"
    path = {"name": Path("small"), "folder": home, "file": home / "workflow.yaml"}[name]
    assert report_faults(path, folder) == 0
    assert "small" in capsys.readouterr().out
    (home / "workflow.yaml").write_text("workflow: small\n")
    assert report_faults(path, folder) == 2
    told = capsys.readouterr().out
    assert "workflow.yaml" in told and "helper.agent.yaml" not in told


@pytest.mark.parametrize(
    "path", ["", "config", "config/agents", "config/workflows", "config/workflows/small"]
)
def test_faults_are_found_from_every_folder_above_or_in_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    folder = small(helper(tmp_path / "config"))
    assert report_faults(tmp_path / path) == 0
    told = capsys.readouterr()
    assert "is fine" in told.out and "not read" not in told.err
    agent = folder / "agents" / "helper.agent.yaml"
    workflow = folder / "workflows" / "small" / "workflow.yaml"
    for file in (agent, workflow):
        file.write_text(file.read_text().replace("nodes:", "nodez:").replace("spec:", "spek:"))
    is_below = [file for file in (agent, workflow) if file.is_relative_to(tmp_path / path)]
    assert report_faults(tmp_path / path) == 2
    assert {line.split(":")[0] for line in capsys.readouterr().out.splitlines()} == {*map(str, is_below)}


def test_every_configuration_below_a_folder_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(helper(tmp_path / "one"))
    small(helper(tmp_path / "more" / "two"))
    helper(tmp_path / ".venv" / "hidden", prompts={"system": "{{ broken"})
    assert report_faults(tmp_path) == 0
    assert capsys.readouterr().out == f"{tmp_path} is fine: 2 agents, 2 workflows.\n"


def test_modules_of_one_name_are_those_of_each_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in projects of `astromesh new` beside one another, whose tools are all in `project_tools`."""
    for name in ("one", "two"):
        tool = {"name": name, "type": "internal", "function": f"same_name.tools:{name}"}
        helper(tmp_path / name / "config", tools=[tool])
        package = tmp_path / name / "same_name"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "tools.py").write_text(f'def {name}(text: str) -> str:\n    """Says."""\n')
    assert report_faults(tmp_path) == 0, capsys.readouterr().out
    assert "same_name" not in sys.modules


def test_files_that_nothing_reads_are_named_wherever_they_are(tmp_path: Path) -> None:
    folder = helper(tmp_path)
    for stray in ("agent/other.agent.yaml", "extra/deep/x.rag.yaml", "flows/a/workflow.yaml"):
        (folder / stray).parent.mkdir(parents=True)
        (folder / stray).write_text("{}")
    (folder / "knowledge").mkdir()
    (folder / "knowledge" / "notes.yaml").write_text("{}")  # a document, perhaps
    (folder / "workflows" / "empty").mkdir(parents=True)
    (folder / "workflows" / "empty" / "agents.yaml").write_text("{}")
    found = findings(folder, folder).warnings
    unread = {str(Path(one.file).relative_to(folder)) for one in found if "not read" in one.message}
    assert unread == {
        "agent/other.agent.yaml", "extra/deep/x.rag.yaml", "flows/a/workflow.yaml",
        "workflows/empty/agents.yaml",
    }  # fmt: skip


# -- variables that nothing provides -----------------------------------------------------------------------


def test_a_variable_that_nothing_provides_is_a_warning_with_its_line(tmp_path: Path) -> None:
    text = "You are {{ agent_name }}.\nYou serve {{ custmer }}.\n{{ product }}\n"
    folder = helper(tmp_path, prompts={"system": text, "variables": {"customer": "all"}})
    told = [str(one) for one in findings(folder, folder).warnings]
    assert len(told) == 2
    assert "nothing provides `custmer`" in told[0] and "Did you mean `customer`?" in told[0]
    assert "nothing provides `product`" in told[1] and "prompts.variables" in told[1]


@pytest.mark.parametrize(
    "text",
    [
        "{{ agent_name }} {{ description }} {{ current_date }} {{ semantic_context }} {{ context.tier }}",
        "{{ tier | default('none') }}",
        "{% if tier %}{{ tier }}{% endif %}",
        "{{ tier if tier is defined else 'none' }}",
        "{% for one in episodic_events %}{{ one.event }}{{ loop.index }}{% endfor %}",
        "{% set tier = 'gold' %}{{ tier }} {{ range(3) }}",
    ],
)
def test_what_is_provided_or_expected_to_be_missing_is_no_warning(tmp_path: Path, text: str) -> None:
    assert warnings_of(helper(tmp_path, prompts={"system": text})) == []


# -- backends without a URL --------------------------------------------------------------------------------


def test_a_backend_without_a_url_is_a_warning(tmp_path: Path) -> None:
    folder = helper(tmp_path, memory=POSTGRES)
    pipeline = {"apiVersion": "astromesh/v1", "kind": "RAGPipeline", "metadata": {"name": "notes"},
                "spec": {"store": {"backend": "pgvector"}}}  # fmt: skip
    (folder / "rag").mkdir()
    (folder / "rag" / "notes.rag.yaml").write_text(yaml.safe_dump(pipeline))
    assert [(key, "storage.url" in text) for key, text in warnings_of(folder)] == [
        ("spec.memory.conversational.backend", True),
        ("spec.memory.episodic.backend", True),
        ("spec.store.backend", True),
    ]


@pytest.mark.parametrize(
    ("memory", "runtime"),
    [
        (POSTGRES, {"storage": {"url": "postgresql://me@127.0.0.1/db"}}),
        ({"conversational": {"backend": "postgres", "url": "postgresql://me@127.0.0.1/db"}}, {}),
        ({"conversational": {"backend": "redis"}}, {"redis": {"url": "redis://127.0.0.1"}}),
        ({"conversational": {"backend": "sqlite"}}, {}),
    ],
)
def test_a_backend_with_a_url_is_none(tmp_path: Path, memory: Any, runtime: Any) -> None:
    folder = helper(tmp_path, memory=memory)
    (folder / "runtime.yaml").write_text(yaml.safe_dump({**HEAD, "spec": runtime}))
    assert warnings_of(folder) == []


def test_redis_needs_the_url_of_redis(tmp_path: Path) -> None:
    [(key, text)] = warnings_of(helper(tmp_path, memory={"conversational": {"backend": "redis"}}))
    assert key == "spec.memory.conversational.backend" and "redis.url" in text


# -- formats -----------------------------------------------------------------------------------------------


def test_github_gets_annotations_of_files_and_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = helper(tmp_path, prompts={"system": "{{ custmer }}"}, strem="x: 100%")
    file = folder / "agents" / "helper.agent.yaml"
    assert report_faults(folder, output=Format.GITHUB) == 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1  # what is broken gets no advice
    assert lines[0].startswith(f"::error file={file},line=")
    assert ",title=spec.strem::unknown key `strem`. Did you mean `stream`?" in lines[0]
    file.write_text(file.read_text().replace("strem: 'x: 100%'\n", ""))
    assert report_faults(folder, output=Format.GITHUB) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith(f"::warning file={file},line=") and "`custmer`" in first
    assert second == f"{folder} is fine: 1 agent."


def test_what_would_end_an_annotation_is_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = helper(tmp_path / "a,b:c", tools=[{"name": "100%\n", "type": "internal"}])
    assert report_faults(folder, output=Format.GITHUB) == 2
    for line in capsys.readouterr().out.splitlines():
        assert line.startswith("::error file=") and "a%2Cb%3Ac" in line


def test_json_has_faults_and_warnings_of_workflows_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small(helper(tmp_path))
    (folder / "workflows" / "small" / "workflow.yaml").write_text("workflow: small\n")
    assert report_faults(folder, output=Format.JSON) == 2
    report = orjson.loads(capsys.readouterr().out)
    assert {fault["file"].rpartition("/")[2] for fault in report["faults"]} == {"workflow.yaml"}
