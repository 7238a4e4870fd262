"""deploy/kubernetes: what is rendered is up to date, valid, hardened, and a configuration of the server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpg
import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from astromesh.cli.commands.doctor import migrate
from astromesh.cli.main import complete_app
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, store_in, write
from tests.integration.workflow.folders import small

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "kubernetes"
OBJECTS: dict[str, list[dict[str, Any]]] = {
    name: list(yaml.safe_load_all((FOLDER / "rendered" / f"{name}.yaml").read_text()))
    for name in ("small", "ha")
}
_NAME = {"type": "string", "pattern": "^[a-z][a-z0-9-]*$"}


def _closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    properties = {**required, **optional}
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False,
    }  # fmt: skip


#: what we use of resources that kubernetes-validate does not know, as their operators define them
CUSTOM = {
    "TriggerAuthentication": _closed(
        {
            "secretTargetRef": {
                "type": "array",
                "items": _closed({"parameter": {"const": "connection"}, "name": _NAME, "key": {}}),
            }
        }
    ),
    "ScaledObject": _closed(
        {
            "scaleTargetRef": _closed({"name": _NAME}),
            "minReplicaCount": {"type": "integer"},
            "maxReplicaCount": {"type": "integer"},
            "triggers": {
                "type": "array",
                "items": _closed(
                    {
                        "type": {"const": "postgresql"},
                        "authenticationRef": _closed({"name": _NAME}),
                        "metadata": _closed(
                            {"query": {"type": "string"}, "targetQueryValue": {"type": "string"}}
                        ),
                    }
                ),
            },
        },
        pollingInterval={"type": "integer"},
        cooldownPeriod={"type": "integer"},
    ),
    "ServiceMonitor": _closed(
        {
            "selector": _closed({"matchLabels": {"type": "object"}}),
            "endpoints": {
                "type": "array",
                "items": _closed(
                    {
                        "port": {"const": "http"},
                        "path": {"const": "/metrics"},
                        "interval": {"type": "string", "pattern": "^[0-9]+s$"},
                        "authorization": _closed(
                            {"type": {"const": "Bearer"}, "credentials": _closed({"name": _NAME, "key": {}})}
                        ),
                    }
                ),
            },
        }
    ),
}


def of_kind(overlay: str, kind: str) -> list[dict[str, Any]]:
    return [one for one in OBJECTS[overlay] if one["kind"] == kind]


def test_what_is_rendered_is_up_to_date() -> None:
    command = [sys.executable, "scripts/kubernetes.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("overlay", OBJECTS)
def test_every_object_is_valid(overlay: str) -> None:
    names = set()
    for one in OBJECTS[overlay]:
        names.add((one["kind"], one["metadata"]["name"]))
        assert one["metadata"]["namespace"] == "astromesh"
        if one["kind"] in CUSTOM:
            jsonschema_rs.validate(CUSTOM[one["kind"]], one["spec"])
        else:
            kubernetes_validate.validate(one, "1.30", strict=True)
    assert len(names) == len(OBJECTS[overlay])


@pytest.mark.parametrize("overlay", OBJECTS)
def test_pods_are_hardened_and_end_after_the_longest_drain(overlay: str) -> None:
    commands = {command.name for command in complete_app().registered_commands}
    working = [one for one in OBJECTS[overlay] if one["kind"] in ("Deployment", "Job")]
    pods = [(one["kind"], one["spec"]["template"]["spec"]) for one in working]
    assert [kind for kind, _ in pods] == ["Job", "Deployment", "Deployment"]
    for kind, pod in pods:
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not pod["automountServiceAccountToken"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert container["args"][1] in commands
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        if kind == "Deployment":
            drain = container["lifecycle"]["preStop"]["exec"]["command"]
            assert drain[:2] == ["astromesh", "drain"]
            assert pod["terminationGracePeriodSeconds"] >= int(drain[-1]) + 40


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    for one in of_kind("ha", "ConfigMap")[:2]:
        for name, text in one["data"].items():
            (tmp_path / ("agents" if ".agent." in name else "") / name).write_text(text)
    env = {"DATABASE_URL": "postgresql://h/d", "JWT_SECRET": "s" * 32, "OPENAI_API_KEY": "k"}
    found = AgentRuntime(tmp_path, env=env).load_configuration()
    found.require_sound()
    assert list(found.agents) == ["assistant"]
    assert found.faults == ()


async def test_the_depth_of_the_queue_is_what_waits_and_runs(tmp_path: Path, postgres_database: str) -> None:
    """The query of KEDA, over tables that `astromesh migrate` has made; the docs have the same one."""
    write(tmp_path, manifest())
    small(tmp_path)
    store_in(tmp_path, postgres_database)
    await asyncio.to_thread(migrate, tmp_path, tmp_path / "data")
    (scaled,) = of_kind("ha", "ScaledObject")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    (documented,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "operations.md").read_text(), re.S)
    assert query.split() == documented.split()
    connection = await asyncpg.connect(postgres_database)
    try:
        assert await connection.fetchval(query) == 0
        api = runtime_of(tmp_path, ScriptedProvider("Hi", repeat=True))
        api.durable.executes = False
        async with client_of(api) as client:
            for session in ("a", "b"):
                body = {"query": "Hello", "session_id": session}
                assert (await client.post("/v1/agents/helper/runs", json=body)).status_code == 202
            assert (await client.post("/v1/workflows/small/runs", json={"input": 1})).status_code == 202
            assert await connection.fetchval(query) == 3
            found = (await client.get("/v1/queues")).json()
            (tasks,) = found["tasks"]
            assert [one["queued"] for one in found["queues"]] == [2]
            assert {**tasks, "oldest_at": bool(tasks["oldest_at"])} == {
                "workflow": "small", "queued": 1, "running": 0, "waiting": 0, "oldest_at": True,
            }  # fmt: skip
    finally:
        await connection.close()
