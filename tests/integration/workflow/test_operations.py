"""Around the Tasks of a workflow: metrics, observers, policies, encrypted credentials."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path

import pytest

from astromesh.cli.commands import access as command
from astromesh.config.workflow import AuthSpec
from astromesh.errors import InvalidInput, MissingKey
from astromesh.runtime.records import TaskRequest
from astromesh.telemetry.metrics import exposition
from astromesh.workflow import Engine
from astromesh.workflow.credentials import encrypt_secret, new_key, read_secret
from astromesh.workflow.operations import load_operation
from astromesh.workflow.project import check_folder
from tests.integration.agents_folder import client_of
from tests.integration.workflow.folders import ENDED, runtime_with, sample, small, until
from tests.integration.workflow.test_sample_project import CONTRACT


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config"


# -- metrics -------------------------------------------------------------------------------------------------


async def test_stages_tools_tasks_and_queues_are_metrics(config: Path) -> None:
    async with client_of(runtime_with(sample(config))) as client:
        await client.post("/v1/workflows/contract_review/run", json={"input": {"text": CONTRACT}})
        text = (await client.get("http://127.0.0.1/metrics")).text
    of = 'workflow="contract_review"'
    for line in (
        f'astromesh_workflow_stages_total{{node="review",status="success",{of}}} 3.0',
        f'astromesh_workflow_stage_duration_seconds_count{{node="assess",{of}}} 3.0',
        f'astromesh_workflow_tool_duration_seconds_count{{node="review",tool="law_lookup",{of}}} 3.0',
        f'astromesh_workflow_task_duration_seconds_count{{status="success",{of}}} 1.0',
        f"astromesh_workflow_queue_seconds_count{{{of}}} 1.0",
        'astromesh_tool_calls_total{ok="true",tool="law_lookup"} 3.0',
    ):
        assert line in text
    tokens = re.findall(r"^astromesh_tokens_total\{.*\} (\S+)$", text, re.M)
    assert sum(map(float, tokens)) > 0, "models of a workflow's own agents count like all others"


async def test_tasks_and_stages_in_progress_are_metrics(config: Path, tmp_path: Path) -> None:
    """Two Tasks at one place: one runs its stage, the other waits for its turn."""
    small(config, op="wait", scheduler="scheduler: {max_concurrency: 1}\n")
    go = tmp_path / "go"
    runtime = runtime_with(config)
    async with client_of(runtime) as client:
        url, workflows = "/v1/workflows/small/runs", runtime.workflows
        ids = [(await client.post(url, json={"input": {"go": str(go)}})).json()["task_id"] for _ in range(2)]
        wanted = {("small", "running"): 1.0, ("small", "queued"): 1.0}
        async with asyncio.timeout(60):
            while workflows.tasks.in_progress() != wanted or not any(
                workflows.loaded.stages_in_progress().values()
            ):
                await asyncio.sleep(0.01)
        text = (await client.get("http://127.0.0.1/metrics")).text
        go.touch()
        for task_id in ids:
            await until(client, task_id, *ENDED)
        after = workflows.loaded.stages_in_progress()
    assert 'astromesh_workflow_tasks{state="queued",workflow="small"} 1.0' in text
    assert 'astromesh_workflow_stages_in_progress{workflow="small"} 1.0' in text
    assert after == {("small",): 0.0}


async def test_a_workflow_keeps_only_the_metrics_of_its_enabled_profiles(config: Path) -> None:
    small(
        config,
        metrics="profiles:\n  - {name: one, metrics: [{name: node_execution_count, type: counter}]}\n"
        "  - {name: off, enabled: false, metrics: [{name: task_total_duration, type: timer}]}\n",
    )
    async with runtime_with(config) as runtime:
        await runtime.workflows.run("small", TaskRequest(1))
        text = exposition(runtime.metrics).decode()
    assert 'astromesh_workflow_stages_total{node="x",status="success",workflow="small"} 1.0' in text
    assert (
        'workflow="small"'
        not in text.replace("astromesh_workflow_stages_total", "", 3).partition(
            "astromesh_workflow_stage_duration"
        )[2]
    )


def test_unknown_metrics_and_wrong_kinds_are_faults(config: Path) -> None:
    small(
        config,
        metrics="profiles:\n  - {name: one, metrics: [{name: node_execution_cout, type: counter},"
        " {name: queue_latency, type: gauge}]}\n",
    )
    faults = check_folder(config / "workflows" / "small").faults
    assert [fault.rule for fault in faults] == ["unknown_metric", "wrong_metric_type"]
    assert "node_execution_count" in faults[0].hint


# -- observers (E59) -----------------------------------------------------------------------------------------

PLUGINS = """
import time

class Audit:
    def __init__(self, config):
        self.file = config["path"]

    def observe(self, event):
        time.sleep(config_delay(self))
        with open(self.file, "a") as file:
            import json
            file.write(json.dumps(event) + "\\n")

def config_delay(audit):
    return 0.01

class Meddler:
    def __init__(self, config):
        pass

    async def observe(self, event):
        event["entry"]["output"] = "changed"
"""
OBSERVERS = """plugins:
  - {id: meddler, module: watching.Meddler}
  - {id: audit, module: watching.Audit, config: {path: PATH}}
  - {id: off, module: watching.Nobody, enabled: false}
"""


async def test_e59_observers_see_everything_in_order_and_change_and_hold_up_nothing(
    config: Path, tmp_path: Path
) -> None:
    """One that raises or is slow harms neither the Task nor the other."""
    file = tmp_path / "audit.jsonl"
    small(config, plugins=OBSERVERS.replace("PATH", str(file)))
    (config / "workflows" / "small" / "watching.py").write_text(PLUGINS)
    async with runtime_with(config) as runtime:
        results = [await runtime.workflows.run("small", TaskRequest(n)) for n in range(3)]
    seen = [json.loads(line) for line in file.read_text().splitlines()]
    assert [result.output for result in results] == [0, 2, 4]
    per_task = ["task.started", "stage.finished", "stage.finished", "stage.finished", "task.finished"]
    assert [event["type"] for event in seen] == per_task * 3
    assert [event["task_id"] for event in seen[::5]] == [result.task_id for result in results]
    assert [event["entry"]["stage_id"] for event in seen[1:4]] == ["s", "x", "e"]
    assert [event["entry"]["seq"] for event in seen[1:4]] == [1, 2, 3]


async def test_an_engine_that_is_loaded_has_the_observers_of_its_folder(config: Path) -> None:
    small(config, plugins="plugins: [{id: w, module: watch.Seen}]\n")
    folder = config / "workflows" / "small"
    (folder / "watch.py").write_text(
        "SEEN = []\n"
        "class Seen:\n"
        "    def __init__(self, config): pass\n"
        "    def observe(self, event):\n"
        "        seq = event['entry']['seq'] if 'entry' in event else 0\n"
        "        SEEN.append((event['type'], event['task_id'], seq))\n"
        "    def close(self): SEEN.append(('closed', '', 0))\n"
    )
    async with Engine.load(folder) as engine:
        task = await engine.run(2)
        submitted = await engine.submit(3).result()
    seen = load_operation(folder, "watch:Seen").__init__.__globals__["SEEN"]
    stages = [("stage.finished", seq) for seq in (1, 2, 3)]
    per_task = [("task.started", 0), *stages, ("task.finished", 0)]
    assert seen == [
        *((kind, one.task_id, seq) for one in (task, submitted) for kind, seq in per_task), ("closed", "", 0),
    ]  # fmt: skip
    seen.clear()
    async with Engine.load(folder, observed=False) as engine:
        assert (await engine.run(2)).output == 4
    assert seen == []


def test_an_observer_that_is_not_there_is_a_fault(config: Path) -> None:
    small(config, plugins="plugins:\n  - {id: audit, module: watching.Audit}\n")
    assert [fault.rule for fault in check_folder(config / "workflows" / "small").faults] == ["unknown_plugin"]


# -- policies (E57) ------------------------------------------------------------------------------------------


async def test_a_denied_tool_fails_its_stage_with_the_policy_s_reason(config: Path) -> None:
    sample(config)
    policy = config / "workflows" / "contract_review" / "policy.yaml"
    policy.write_text(
        "policies:\n  - name: strict\n    rules:\n"
        "      - {target: tool, target_id: law_lookup, action: deny, reason: no law today}\n"
    )
    async with runtime_with(config) as runtime:
        result = await runtime.workflows.run("contract_review", TaskRequest({"text": CONTRACT}))
    codes = {entry.error["code"] for entry in result.history["review"] if entry.error}
    assert (result.status, codes) == ("failure", {"policy_denied"})
    assert "no law today" in str(result.history["review"][0].error)


# -- credentials (E62) ---------------------------------------------------------------------------------------


def auth(**values: str) -> AuthSpec:
    return AuthSpec.model_validate({"source": "env", "env_var": "KEY", **values})


def test_a_secret_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "crm.json").write_text('{"crm": {"api_key": "s3cret"}}')
    assert read_secret(auth(), tmp_path, {"KEY": "k"}) == "k"
    assert read_secret(auth(type="bearer"), tmp_path, {"KEY": "k"}) == "k"
    spec = auth(source="file", file_path="crm.json", file_key="crm.api_key")
    assert read_secret(spec, tmp_path, {}) == "s3cret"
    for spec in (auth(), auth(source="file", file_path="none"), auth(type="encrypted")):
        with pytest.raises(MissingKey):
            read_secret(spec, tmp_path, {"KEY": ""} if spec.type != "encrypted" else {"KEY": "token"})


def test_an_encrypted_secret_needs_its_key(tmp_path: Path) -> None:
    key, other = new_key(), new_key()
    token = encrypt_secret("s3cret", key)
    (tmp_path / "key").write_text(key + "\n")
    assert "s3cret" not in token
    assert read_secret(auth(type="encrypted", key_env="K"), tmp_path, {"KEY": token, "K": key}) == "s3cret"
    assert read_secret(auth(type="encrypted", key_file="key"), tmp_path, {"KEY": token}) == "s3cret"
    for env in ({"KEY": token, "K": other}, {"KEY": token, "K": "short"}, {"KEY": token}):
        with pytest.raises(MissingKey) as missing:
            read_secret(auth(type="encrypted", key_env="K"), tmp_path, env)
        assert token not in str(missing.value) and other not in str(missing.value)


async def test_a_configured_secret_is_masked_by_its_value(config: Path) -> None:
    """In an output, in an error, and so in records and later inputs. A short one is where it stands alone."""
    credentials = [
        f"  - {{id: {name}, provider: p, auth: {{type: api_key, source: env, env_var: {name}}}}}"
        for name in ("CRM", "PIN", "TINY", "ABSENT")
    ]
    text = "\n".join(["provider_credentials:", *credentials, ""])
    small(config, op="leak", provider_credentials=text)
    folder = config / "workflows" / "small"
    (folder / "ops.py").write_text(
        "def leak(input, context, tools):\n"
        "    if input == 'raise':\n"
        "        raise ValueError('refused: hunter2-hunter2')\n"
        "    return {'hunter2-hunter2': ['key=hunter2-hunter2;', 'pin=1234,12345 a123']}\n"
    )
    env = {"CRM": "hunter2-hunter2", "PIN": "1234", "TINY": "123"}
    async with Engine.load(folder, env=env) as engine:
        returned, raised = await engine.run("return"), await engine.run("raise")
    assert returned.output == {"***": ["key=***;", "pin=***,12345 a123"]}
    assert raised.error and raised.error["code"] == "operation_error" and "***" in raised.error["message"]
    for result in (returned, raised):
        assert "hunter2" not in json.dumps(result.with_trace())


def test_the_command_encrypts_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    monkeypatch.setattr("sys.stdin", io.StringIO("s3cret\n"))
    command.encrypt("", file, new_key=True)
    token = capsys.readouterr().out
    assert file.stat().st_mode & 0o777 == 0o600
    spec = auth(type="encrypted", key_file="key")
    assert read_secret(spec, tmp_path, {"KEY": token}) == "s3cret"
    with pytest.raises(InvalidInput, match="cannot be written"):
        command.encrypt("", file, new_key=True)
    with pytest.raises(InvalidInput, match="Name the key"):
        command.encrypt("", None, new_key=False)
