"""The commands as processes: what they print, where, and how they end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest

from astromesh import __version__
from tests.acceptance.terminal import Terminal, astromesh, environment
from tests.platform.astromesh import PROGRAM, ROOT
from tests.platform.model import MockModel
from tests.platform.processes import free_port

QUESTION = "How do I give the agent new knowledge?"
AGENT = """apiVersion: astromesh/v1
kind: Agent
metadata: {{name: {name}, version: "1.0.0"}}
spec:
  model:
    primary: {{provider: openai, model: "{model}", endpoint: "{url}", api_key: sk-very-secret, timeout: 5}}
  prompts: {{system: "You are {{{{ agent_name }}}}."}}
  memory: {{conversational: {{backend: sqlite}}}}
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `astromesh new` writes, with no key set."""
    folder = tmp_path_factory.mktemp("new") / "shop"
    made = astromesh(folder.parent, "new", "shop", "--name", "clerk")
    assert (made.returncode, made.stderr) == (0, "")
    return folder


def agent_with(folder: Path, model: str, url: str, name: str = "talker") -> Path:
    agents = folder / "config" / "agents"
    agents.mkdir(parents=True, exist_ok=True)
    (agents / f"{name}.agent.yaml").write_text(AGENT.format(name=name, model=model, url=url))
    return folder


# -- the command itself --------------------------------------------------------------------------------------


def test_help_names_every_command_and_imports_none_of_them() -> None:
    program = "import sys, astromesh.cli.main\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert not loaded & {"rich", "pydantic", "fastapi", "structlog", "yaml", "asyncio", "numpy", "jinja2"}
    assert {name for name in loaded if name.startswith("astromesh.")} <= {
        "astromesh.cli",
        "astromesh.cli.main",
        "astromesh.cli.startup",
        "astromesh.errors",
    }


def test_a_wrong_call_is_2_with_a_hint_and_no_traceback(tmp_path: Path) -> None:
    for words in (["frobnicate"], ["run"], ["serve", "--port", "70000"], ["keys", "create"], ["--nope"]):
        done = astromesh(tmp_path, *words)
        assert done.returncode == 2, words
        assert done.stderr
        assert "Traceback" not in done.stderr
        assert done.stdout == ""


# -- new -----------------------------------------------------------------------------------------------------


def test_a_new_project_is_sound_and_answers_at_once(project: Path) -> None:
    checked = astromesh(project, "validate")
    assert (checked.returncode, checked.stdout) == (0, "config is fine: 1 agent.\n")
    looked = astromesh(project, "doctor")
    assert looked.returncode == 0
    assert "OPENAI_API_KEY is not set" in looked.stdout
    asked = astromesh(project, "run", "clerk", QUESTION)
    assert asked.returncode == 0
    assert "config/knowledge/" in asked.stdout
    assert "changing-this-agent.md" in asked.stdout
    assert (project / ".gitignore").exists()
    assert not list(project.rglob("*AGENT*"))


def test_the_editor_schemas_of_a_new_project_accept_its_files(project: Path) -> None:
    import yaml

    manifests = [*(project / "config").glob("*.yaml"), *(project / "config").glob("*/*.yaml")]
    assert len(manifests) == 4
    for file in manifests:
        first = file.read_text().splitlines()[0]
        schema = file.parent / first.partition("$schema=")[2]
        jsonschema_rs.validate(json.loads(schema.read_text()), yaml.safe_load(file.read_text()))


def test_new_spares_what_is_there_and_refuses_impossible_names(project: Path, tmp_path: Path) -> None:
    before = (project / "README.md").read_text()
    for words, said in (
        ([str(project)], "not empty"),
        ([str(project / "README.md")], "not a folder"),
        ([str(tmp_path / "x"), "--name", "no/slash"], "is not a valid name of an agent"),
    ):
        done = astromesh(tmp_path, "new", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in done.stderr
    assert (project / "README.md").read_text() == before
    assert not (tmp_path / "x").exists()


# -- run -----------------------------------------------------------------------------------------------------


def test_run_as_json_is_the_answer_of_the_api(project: Path) -> None:
    done = astromesh(project, "run", "clerk", QUESTION, "--json", "--session", "s1")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["agent"], answer["session_id"]) == (0, "clerk", "s1")
    assert answer["metadata"]["tools_called"] == ["search_knowledge"]


def test_run_as_a_stream_of_events_ends_with_the_answer(project: Path) -> None:
    done = astromesh(project, "run", "clerk", QUESTION, "--json", "--stream")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[0]["type"], events[-1]["type"]) == ("run.started", "run.completed")
    said = "".join(e["content"] for e in events if e["type"] == "model.delta" and e["step"] == 2)
    assert said == events[-1]["response"]


def test_run_streams_the_same_text_and_shows_tools_beside_it(project: Path) -> None:
    whole = astromesh(project, "run", "clerk", QUESTION)
    streamed = astromesh(project, "run", "clerk", "-", "--stream", given=QUESTION)
    assert streamed.stdout == whole.stdout
    assert "→ search_knowledge" in streamed.stderr
    assert "search_knowledge" not in streamed.stdout


def test_only_a_named_session_is_kept(project: Path, mock_llm: MockModel, tmp_path: Path) -> None:
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    for words in (["first"], ["second", "-s", "s1"], ["third", "-s", "s1"]):
        assert astromesh(folder, "run", "talker", *words).stdout == "yes\n"
    seen = [[m["content"] for m in body["messages"]][1:] for body in mock_llm.requests()]
    assert seen == [["first"], ["second"], ["second", "yes", "third"]]


def test_what_is_wrong_with_the_call_is_2_and_a_run_that_failed_is_1(
    project: Path, mock_llm: MockModel, tmp_path: Path
) -> None:
    missing = astromesh(project, "run", "clark", "hi")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "Did you mean `clerk`?" in missing.stderr
    assert astromesh(project, "run", "clerk", "  ").returncode == 2
    failing = agent_with(tmp_path, "mock+status=500", mock_llm.url)
    for words in ([], ["--stream"], ["--json"]):
        failed = astromesh(failing, "run", "talker", "hi", *words)
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "Traceback" not in failed.stderr
        assert "sk-very-secret" not in failed.stderr
    assert json.loads(failed.stderr.splitlines()[-1])["error"]["code"] == "all_providers_failed"


# -- chat ----------------------------------------------------------------------------------------------------


def test_chat_reads_lines_from_a_pipe_and_goes_on_with_its_session(
    mock_llm: MockModel, tmp_path: Path
) -> None:
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    done = astromesh(folder, "chat", "talker", given="one\n\ntwo\n/new\nthree\n/quit\nnever\n")
    assert (done.returncode, done.stdout.split()) == (0, ["yes", "yes", "yes"])
    seen = [[m["content"] for m in body["messages"]][1:] for body in mock_llm.requests()]
    assert seen == [["one"], ["one", "yes ", "two"], ["three"]]


def test_chat_goes_on_after_a_failure_and_ends_with_its_code(mock_llm: MockModel, tmp_path: Path) -> None:
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    mock_llm.script({"status": 400})
    done = astromesh(folder, "chat", "talker", given="one\ntwo\n")
    assert (done.returncode, done.stdout.split()) == (1, ["yes"])
    assert "error: " in done.stderr


@pytest.mark.parametrize("errors", ["surrogateescape", "strict"])
def test_a_chat_line_of_broken_bytes_is_refused_and_no_model_is_blamed(
    mock_llm: MockModel, tmp_path: Path, errors: str
) -> None:
    """Python hands what is no UTF-8 over as halves of surrogate pairs, or, by the locale, raises an error."""
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    spoken = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": f"ascii:{errors}"}
    done = subprocess.run(
        [PROGRAM, "chat", "talker"], cwd=folder, env=environment(folder, spoken), input="caf\u00e9\ntwo\n",
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (2, ["yes"])
    assert "error: The query is not UTF-8" in done.stderr


FAILING_SERVER = """apiVersion: astromesh/v1
kind: MCPConfig
spec:
  servers:
    files: {transport: stdio, command: PYTHON, args: ["-c", "raise SystemExit('no licence: set FILES_KEY')"]}
"""


def test_chat_tells_the_last_words_of_an_mcp_server_that_fails(mock_llm: MockModel, tmp_path: Path) -> None:
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    (folder / "config" / "mcp.yaml").write_text(FAILING_SERVER.replace("PYTHON", sys.executable))
    agent = folder / "config" / "agents" / "talker.agent.yaml"
    agent.write_text(agent.read_text() + "  tools: [{name: files, type: mcp, server: files}]\n")
    done = astromesh(folder, "chat", "talker", given="one\n")
    assert (done.returncode, done.stdout.split()) == (0, ["yes"])
    assert "mcp_server_unavailable" in done.stderr
    assert "no licence: set FILES_KEY" in done.stderr


def test_chat_with_nobody_is_2(project: Path) -> None:
    done = astromesh(project, "chat", "nobody", given="hi\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nobody" in done.stderr


@pytest.fixture
def terminal(mock_llm: MockModel, tmp_path: Path) -> Iterator[Terminal]:
    """A chat with an agent that answers in 200 tokens, fifty milliseconds each."""
    opened = Terminal(agent_with(tmp_path, "mock+tokens=200+gap=50", mock_llm.url), "chat", "talker")
    yield opened
    opened.close()


def test_ctrl_c_cancels_the_answer_and_not_the_program(terminal: Terminal, mock_llm: MockModel) -> None:
    terminal.wait_for("> ")
    terminal.type("tell me a story\n")
    terminal.wait_for("the quick brown")
    terminal.interrupt()
    terminal.wait_for("cancelled")
    mock_llm.script({"text": "a short one"})
    terminal.type("shorter\n")
    terminal.wait_for("a short one")
    terminal.wait_for("> ")
    terminal.interrupt_until("/exit or Ctrl-D")
    terminal.type("/quit\n")
    assert terminal.end() == 0
    assert mock_llm.stats()["open"] == 0


def test_what_a_model_says_cannot_drive_the_terminal(terminal: Terminal, mock_llm: MockModel) -> None:
    terminal.wait_for("> ")
    mock_llm.script({"text": "\x1b]0;owned\x07red\x1b[31m done"})
    terminal.type("hi\n")
    terminal.wait_for("]0;ownedred[31m done")
    terminal.wait_for("> ")
    terminal.type("\x04")
    assert terminal.end() == 0


# -- validate, doctor, schema, tools -------------------------------------------------------------------------

BROKEN = """apiVersion: astromesh/v1
kind: Agent
metadata: {name: broken}
spec:
  model: {primary: {provider: embeded}}
  orchestration: {patern: react, max_iterations: none}
"""


def test_validate_tells_every_fault_with_its_place_on_stdout(tmp_path: Path) -> None:
    agent_with(tmp_path, "mock", "http://127.0.0.1:9/v1")
    file = tmp_path / "config" / "agents" / "broken.agent.yaml"
    file.write_text(BROKEN)
    done = astromesh(tmp_path, "validate")
    assert done.returncode == 2
    assert "config/agents/broken.agent.yaml:5:" in done.stdout
    assert "Did you mean `embedded`?" in done.stdout
    assert "Did you mean `pattern`?" in done.stdout
    assert "config/agents/broken.agent.yaml:6:" in done.stdout
    report = json.loads(astromesh(tmp_path, "validate", "--json").stdout)
    assert {fault["line"] for fault in report["faults"]} == {5, 6}
    assert any("api_key" in warning["key"] for warning in report["warnings"])


def test_validate_of_one_file_tells_its_faults_only(tmp_path: Path) -> None:
    agent_with(tmp_path, "mock", "http://127.0.0.1:9/v1")
    (tmp_path / "config" / "agents" / "broken.agent.yaml").write_text(BROKEN)
    fine = astromesh(tmp_path, "validate", "config/agents/talker.agent.yaml")
    assert (fine.returncode, fine.stdout) == (0, "config/agents/talker.agent.yaml is fine.\n")
    assert astromesh(tmp_path, "validate", "config/agents/broken.agent.yaml").returncode == 2
    inside = astromesh(tmp_path / "config" / "agents", "validate", "broken.agent.yaml")
    assert (inside.returncode, inside.stdout.count("broken.agent.yaml:")) == (2, 3)
    for strange in ("nowhere", "tests.txt"):
        (tmp_path / "tests.txt").write_text("x")
        assert astromesh(tmp_path, "validate", strange).returncode == 2


def test_doctor_is_2_when_an_agent_cannot_run_and_says_why(tmp_path: Path) -> None:
    agent_with(tmp_path, "mock", "http://127.0.0.1:9/v1")
    done = astromesh(tmp_path, "doctor", "--json")
    assert done.returncode == 2
    findings = {(f["part"], f["subject"]): f for f in json.loads(done.stdout)}
    assert findings["agents", "talker"]["state"] == "failed"
    assert findings["stores and providers", "provider:openai/mock"]["state"] == "note"
    assert findings["stores and providers", "store:conversation_stores:sqlite"]["state"] == "ok"
    assert "sk-very-secret" not in done.stdout + done.stderr


def test_doctor_says_which_folder_cannot_be_written(project: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = astromesh(project, "doctor", env={"ASTROMESH_DATA_DIR": str(tmp_path / "file" / "data")})
    assert done.returncode == 2
    assert "cannot be written" in done.stdout
    assert "Traceback" not in done.stderr


def test_schema_lists_prints_and_writes(tmp_path: Path) -> None:
    kinds = astromesh(tmp_path, "schema").stdout.split()
    assert "Agent" in kinds
    printed = json.loads(astromesh(tmp_path, "schema", "agent").stdout)
    jsonschema_rs.meta.validate(printed)
    assert astromesh(tmp_path, "schema", "--write", "schemas").returncode == 0
    folder = tmp_path / "schemas"
    written = {str(f.relative_to(folder)): json.loads(f.read_text()) for f in folder.rglob("*.json")}
    assert len(written) == len(kinds)
    assert written["agent.schema.json"] == printed
    of_stages = json.loads(astromesh(tmp_path, "schema", "workflow/workflow").stdout)
    assert written["workflow/workflow.schema.json"] == of_stages and "nodes" in of_stages["properties"]
    assert "Did you mean Agent?" in astromesh(tmp_path, "schema", "Agnet").stderr


def test_tools_list_shows_who_may_use_what(project: Path) -> None:
    tools = json.loads(astromesh(project, "tools", "list", "--json").stdout)
    assert [(t["name"], t["agents"]) for t in tools] == [
        ("days_between", ["clerk"]),
        ("search_knowledge", ["clerk"]),
    ]
    assert "number of days" in astromesh(project, "tools", "list").stdout


def test_tools_call_answers_as_the_model_would_read_it(project: Path) -> None:
    days = '{"start": "2026-01-01", "end": "2026-01-31"}'
    told = json.loads(astromesh(project, "tools", "call", "days_between", days, "--json").stdout)
    assert (told["tool"], told["ok"], told["error"]) == ("days_between", True, None)
    assert "30" in told["content"]
    plain = astromesh(project, "tools", "call", "days_between", "-", "--agent", "clerk", given=days)
    assert (plain.returncode, plain.stdout.strip()) == (0, told["content"])


def test_a_worker_without_its_database_ends_at_sigterm(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "runtime.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: RuntimeConfig\n"
        f"spec: {{storage: {{url: 'postgresql://127.0.0.1:{free_port()}/none'}}}}\n"
    )
    worker = subprocess.Popen(
        [PROGRAM, "worker"], cwd=tmp_path, env=environment(tmp_path), stderr=subprocess.PIPE, text=True
    )
    try:
        assert worker.stderr is not None
        assert any("run_store_away" in line for line in worker.stderr)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.communicate()


def test_tools_call_says_what_is_wrong_with_the_call(project: Path) -> None:
    wrong = astromesh(project, "tools", "call", "days_between", '{"start": 1}')
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "are not valid" in wrong.stderr
    unknown = astromesh(project, "tools", "call", "days_betwen")
    assert unknown.returncode == 2
    assert "Did you mean `days_between`?" in unknown.stderr
    nobody = astromesh(project, "tools", "call", "days_between", "--agent", "clerc")
    assert (nobody.returncode, "Did you mean `clerk`?" in nobody.stderr) == (2, True)


def test_the_version_is_told(tmp_path: Path) -> None:
    assert astromesh(tmp_path, "--version").stdout == f"astromesh {__version__}\n"


def test_graph_draws_the_agent(project: Path) -> None:
    drawn = astromesh(project, "graph", "clerk")
    assert drawn.returncode == 0
    assert drawn.stdout.startswith(("graph ", "flowchart "))
    assert "-->" in drawn.stdout


def test_graph_draws_mcp_servers_without_starting_them(tmp_path: Path) -> None:
    started = tmp_path / "started"
    config = agent_with(tmp_path, "mock", "http://127.0.0.1:9") / "config"
    with (config / "agents" / "talker.agent.yaml").open("a") as file:
        file.write("  tools: [{name: files, type: mcp, server: files}]\n")
    servers = {"files": {"transport": "stdio", "command": "touch", "args": [str(started)]}}
    head = {"apiVersion": "astromesh/v1", "kind": "MCPConfig", "metadata": {"name": "mcp"}}
    (config / "mcp.yaml").write_text(json.dumps({**head, "spec": {"servers": servers}}))
    drawn = astromesh(tmp_path, "graph", "talker")
    assert "files (mcp files)" in drawn.stdout, drawn.stderr
    assert not started.exists()
    assert "Did you mean `talker`?" in astromesh(tmp_path, "graph", "talkr").stderr


def test_graph_draws_the_reasoning_controller() -> None:
    """The sample agent of this repository."""
    drawn = astromesh(ROOT, "graph", "reasoning-agent", "--config", "config")
    assert drawn.returncode == 0, drawn.stderr
    assert '["propose_next_step"]' in drawn.stdout
    assert "stop((stop)) -.->" in drawn.stdout


# -- keys ----------------------------------------------------------------------------------------------------


def test_a_key_is_shown_once_listed_without_its_secret_and_revoked(tmp_path: Path) -> None:
    made = astromesh(tmp_path, "keys", "create", "ci", "--agent", "clerk", "--user", "ana", "--expires", "30")
    token = made.stdout.strip()
    assert made.returncode == 0
    assert token.startswith("am_")
    assert token not in made.stderr
    listed = astromesh(tmp_path, "keys", "list", "--json").stdout
    (line,) = json.loads(listed)
    assert (line["name"], line["user"], line["state"]) == ("ci", "ana", "active")
    assert "agents:run:clerk" in line["scopes"]
    assert "agents:run" not in line["scopes"]
    assert token.split("_")[2] not in listed
    assert astromesh(tmp_path, "keys", "revoke", line["id"]).returncode == 0
    assert "revoked" in astromesh(tmp_path, "keys", "list").stdout
    again = astromesh(tmp_path, "keys", "revoke", line["id"])
    assert (again.returncode, "already" in again.stderr) == (2, True)


def test_a_scope_that_does_not_exist_makes_no_key(tmp_path: Path) -> None:
    done = astromesh(tmp_path, "keys", "create", "x", "--scope", "agents:rum")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean `agents:run`?" in done.stderr
    assert not (tmp_path / ".astromesh").exists()


# -- several processes over one data folder ------------------------------------------------------------------


def test_an_idle_chat_shares_its_files_with_other_processes(mock_llm: MockModel, tmp_path: Path) -> None:
    """Whoever starts, in any order: a chat that waits for its user keeps nothing for itself."""
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    first = Terminal(folder, "chat", "talker", "--session", "one")
    second = None
    try:
        first.wait_for("> ")
        done = astromesh(folder, "run", "talker", "hello", "--session", "two")
        assert (done.returncode, done.stdout.strip()) == (0, "yes")
        second = Terminal(folder, "chat", "talker", "--session", "one")
        second.wait_for("> ")
        for chat in (second, first):
            chat.type("hi\n")
            chat.wait_for("yes")
            chat.wait_for("> ")
            chat.type("/quit\n")
            assert chat.end() == 0
    finally:
        for chat in filter(None, (first, second)):
            chat.close()


def test_a_stopped_process_that_keeps_a_file_is_named(mock_llm: MockModel, tmp_path: Path) -> None:
    folder = agent_with(tmp_path, "mock+say=yes", mock_llm.url)
    with Terminal(folder, "chat", "talker") as chat:
        chat.wait_for("> ")
        chat.signal(signal.SIGSTOP)
        done = astromesh(folder, "run", "talker", "hello", "--session", "s")
        assert done.returncode == 1
        assert f"process {chat.pid}" in done.stderr
        assert f"kill -CONT {chat.pid}" in done.stderr
        chat.signal(signal.SIGCONT)
        again = astromesh(folder, "run", "talker", "hello", "--session", "s")
        assert (again.returncode, again.stdout.strip()) == (0, "yes")
