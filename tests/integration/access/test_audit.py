"""Who did what: every route that changes something notes it, with who, what, and how it ended."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.datastructures import State
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from astromesh.access.audit import AUDIT_FILE, KEY_FILE, AuditEntry, AuditFilter, AuditLog
from astromesh.api.app import create_app
from astromesh.api.auth import Auth, RequiredScope
from astromesh.api.fastapi_app import create_fastapi_app
from astromesh.api.middleware.audit import Audited
from astromesh.cli.commands import access
from astromesh.errors import StoreUnavailable
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CallerContext
from tests.integration.agents_folder import manifest, runtime_of, write
from tests.integration.api.test_route_scopes import flat

#: routes that change things without a line in the audit log, and why
ITSELF = {
    "POST /v1/agents/{name}/run": "a run is its own record",
    "POST /v1/agents/{name}/runs": "a run is its own record",
    "POST /v1/chat/completions": "a run is its own record",
    "POST /v1/agents/{name}/agui": "a run is its own record",
    "POST /v1/agents/{name}/a2a": "a run is its own record",
    "POST /v1/agents/{name}/a2a/message:send": "a run is its own record",
    "POST /v1/agents/{name}/a2a/message:stream": "a run is its own record",
    "POST /v1/agents/{name}/a2a/tasks/{run_id:name}:cancel": "noted for both bindings of A2A",
    "POST /v1/agents/{name}/a2a/tasks/{run_id:name}:subscribe": "reads only",
    "POST /v1/agents/{name}/a2a/tasks/{run_id:name}/pushNotificationConfigs": "belongs to the own run",
    "DELETE /v1/agents/{name}/a2a/tasks/{run_id:name}/pushNotificationConfigs/{config}": (
        "deletes a push notification of the own run"
    ),
    "POST /v1/responses": "a run is its own record",
    "POST /v1/responses/compact": "reads only",
    "POST /mcp": "a run is its own record",
    "POST /v1/runs/{run_id}/replay": "reads only",
    "POST /v1/runs/{run_id}/feedback": "a rating of one's own run is its own record",
    "POST /v1/workflows/{name}/run": "a Task is its own record",
    "POST /v1/workflows/{name}/runs": "a Task is its own record",
    "POST /v1/channels/{channel}/webhook": "a message is kept in the inbox",
    "POST /v1/rag/{pipeline}/query": "reads only",
}
SECRET = "the content nobody should see"


def test_every_route_that_changes_something_is_audited_or_says_why_not() -> None:
    routes = [route for route in flat(create_fastapi_app(State()).routes) if isinstance(route, APIRoute)]
    missing = [
        f"{method} {route.path}"
        for route in routes
        for method in sorted((route.methods or set()) - {"GET", "HEAD"})
        if not any(isinstance(d.dependency, Audited) for d in route.dependencies)
    ]
    missing = [name for name in missing if name not in ITSELF]
    assert missing == []


def test_routes_are_audited_before_their_scope_so_that_refusals_are_recorded_too() -> None:
    routes = [route for route in flat(create_fastapi_app(State()).routes) if isinstance(route, APIRoute)]
    late = []
    for route in routes:
        of = [type(one.dependency) for one in route.dependencies]
        if Audited in of and any(issubclass(kind, RequiredScope) for kind in of[: of.index(Audited)]):
            late.append(route.path)
    assert late == []


class Callers:
    """Tokens are names of principals; `admin` is one."""

    async def authenticate(self, token: str) -> CallerContext | None:
        if token == "nobody":
            return None
        scopes = {"admin"} if token == "admin" else {"agents:*", "runs:*", "sessions:read", "sessions:write"}
        tenant = "acme" if token != "stranger" else "other"
        return CallerContext(token, tenant, scopes=frozenset(scopes), metadata={"key_id": f"key-{token}"})


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    agent = manifest("helper", memory={"conversational": {"backend": "sqlite"}})
    runtime = runtime_of(
        write(tmp_path, agent), ScriptedProvider(SECRET, repeat=True), clock=ManualClock(1000.0)
    )
    with TestClient(create_app(runtime, Auth((Callers(),)))) as client:
        yield client


def by(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {who}"}


def acts(client: TestClient, who: str = "admin", **asked: Any) -> list[dict[str, Any]]:
    answer = client.get("/v1/audit", params=asked, headers=by(who))
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["acts"]
    return found


def said(act: dict[str, Any]) -> tuple[str, ...]:
    return (act["principal"], act["tenant"], act["action"], act["object"], act["outcome"])


def run(client: TestClient, who: str, session: str = "s/1") -> str:
    body = {"query": SECRET, "session_id": session}
    run_id: str = client.post("/v1/agents/helper/run", json=body, headers=by(who)).json()["run_id"]
    return run_id


def test_acts_are_noted_with_who_what_and_how_it_ended(client: TestClient, tmp_path: Path) -> None:
    run_id = run(client, "alice")
    client.post(f"/v1/runs/{run_id}/cancel", headers=by("alice"))
    client.post(f"/v1/runs/{run_id}/cancel", headers=by("bob"))
    client.post(f"/v1/runs/{run_id}/resume", json={"decision": "approve"}, headers=by("alice"))
    client.delete("/v1/agents/helper/sessions/s/1", headers=by("alice"))
    client.get("/v1/principals/alice/data", headers=by("admin"))
    client.delete("/v1/principals/bob/data", headers=by("alice"))
    client.delete("/v1/principals/alice/data", headers=by("nobody"))
    everything = acts(client)
    assert [said(act) for act in reversed(everything)] == [
        ("alice", "acme", "run.cancel", run_id, "done"),
        ("bob", "acme", "run.cancel", run_id, "refused"),
        ("alice", "acme", "run.decide", run_id, "refused"),
        ("alice", "acme", "session.erase", "helper/s/1", "done"),
        ("admin", "acme", "principal.show", "alice", "done"),
        ("alice", "acme", "principal.erase", "bob", "refused"),
    ]
    assert everything[-3]["detail"] == "approve"
    assert {act["key"] for act in everything} == {"key-alice", "key-bob", "key-admin"}
    assert {act["at"] for act in everything} == {1000.0}
    kept = (tmp_path / "data" / AUDIT_FILE).read_text()
    assert SECRET not in kept
    assert len(kept.splitlines()) == len(everything)


def test_acts_can_be_asked_for_by_what_who_and_to_what(client: TestClient) -> None:
    for who in ("alice", "bob"):
        for session in ("a", "b"):
            run(client, who, f"{who}-{session}")
            client.delete(f"/v1/agents/helper/sessions/{who}-{session}", headers=by(who))
    assert len(acts(client)) == 4
    assert [a["object"] for a in acts(client, principal="bob")] == ["helper/bob-b", "helper/bob-a"]
    assert [a["principal"] for a in acts(client, object="helper/alice-a")] == ["alice"]
    assert acts(client, action="run.cancel") == []
    assert [a["object"] for a in acts(client, limit=1)] == ["helper/bob-b"]


def test_other_tenants_and_callers_without_the_scope_see_nothing(client: TestClient) -> None:
    client.delete("/v1/principals/stranger/data", headers=by("stranger"))
    assert acts(client) == []
    assert client.get("/v1/audit", headers=by("alice")).status_code == 403


def test_who_is_nobody_is_logged_and_fills_no_disk(client: TestClient, tmp_path: Path) -> None:
    with capture_logs() as lines:
        client.delete(f"/v1/principals/{'x' * 5000}/data", headers=by("nobody"))
    assert [line["object"] for line in lines if line["event"] == "audit"] == ["x" * 200]
    assert not (tmp_path / "data" / AUDIT_FILE).exists()


def test_a_schedule_is_noted_with_its_id(client: TestClient) -> None:
    body = {"agent": "helper", "query": SECRET, "cron": "0 * * * *"}
    made = client.post("/v1/schedules", json=body, headers=by("alice")).json()["id"]
    assert client.delete(f"/v1/schedules/{made}", headers=by("alice")).status_code == 204
    noted = [(act["action"], act["object"]) for act in acts(client)]
    assert noted == [("schedule.delete", made), ("schedule.create", made)]


def test_a_cancel_over_a_socket_is_noted(client: TestClient) -> None:
    run_id = run(client, "alice")
    with client.websocket_connect("/v1/ws/agent/helper", headers=by("alice")) as socket:
        socket.send_json({"type": "cancel", "run_id": run_id})
        assert socket.receive_json()["code"] == "run_not_found"
    assert [said(a) for a in acts(client)] == [("alice", "acme", "run.cancel", run_id, "refused")]


def test_a_cancel_over_a2a_is_noted(client: TestClient) -> None:
    run_id = run(client, "alice")
    url, version = "/v1/agents/helper/a2a", {"a2a-version": "1.0"}
    client.post(f"{url}/tasks/{run_id}:cancel", json={}, headers={**by("bob"), **version})
    body = {"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": run_id}}
    client.post(url, json=body, headers={**by("alice"), **version})
    body = {"query": "hi", "session_id": "s", "not_before": "1970-01-01T01:00:00Z"}
    later = client.post("/v1/agents/helper/runs", json=body, headers=by("alice")).json()["run_id"]
    ended = client.post(f"{url}/tasks/{later}:cancel", json={}, headers={**by("alice"), **version})
    assert ended.json()["status"]["state"] == "TASK_STATE_CANCELED"
    assert [said(act) for act in reversed(acts(client))] == [
        ("bob", "acme", "run.cancel", run_id, "refused"),
        ("alice", "acme", "run.cancel", run_id, "refused"),
        ("alice", "acme", "run.cancel", later, "done"),
    ]


# -- who was erased ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("eraser", ["alice", "admin"])
def test_of_an_erased_principal_a_pseudonym_stays_and_that_it_was_erased(
    client: TestClient, tmp_path: Path, eraser: str
) -> None:
    """Name, key and sessions are gone; others' acts, also those of a longer name, are as they were."""
    for who in ("alice", "alicent"):
        run(client, who, f"{who}-1")
        client.delete(f"/v1/agents/helper/sessions/{who}-1", headers=by(who))
    client.delete("/v1/agents/helper/sessions/of-alice-2", headers=by("bob"))
    with capture_logs() as lines:
        assert client.delete("/v1/principals/alice/data", headers=by(eraser)).status_code == 200
    kept = (tmp_path / "data" / AUDIT_FILE).read_text()
    assert "alice" not in kept.replace("alicent", "")
    assert "alice" not in json.dumps([line for line in lines if line["event"] == "audit"])
    by_bob, by_alicent, by_alice = acts(client, action="session.erase")
    assert by_alicent["object"] == "helper/alicent-1"
    assert (by_bob["principal"], by_bob["object"][:7]) == ("bob", "erased:")
    assert by_alice["principal"].startswith("erased:")
    erasure = acts(client, action="principal.erase")[0]
    assert (erasure["object"], erasure["outcome"]) == (by_alice["principal"], "done")
    assert erasure["principal"] == ("admin" if eraser == "admin" else by_alice["principal"])


def test_who_knows_a_name_can_still_show_that_it_was_erased(client: TestClient, tmp_path: Path) -> None:
    """The pseudonym is keyed: without the data folder's key it says nothing, and elsewhere it is another."""
    run(client, "alice")
    for _ in range(2):
        client.delete("/v1/principals/alice/data", headers=by("alice"))
    assert [a["action"] for a in acts(client, principal="alice")] == ["principal.erase"] * 2
    assert acts(client, object="alice") == acts(client, principal="alice")
    assert acts(client, principal="bob") == []
    key = tmp_path / "data" / KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 32
    key.unlink()
    assert acts(client, principal="alice") == []
    assert len(acts(client)) == 2


def test_acts_that_are_noted_while_a_name_is_erased_are_not_lost(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    with ThreadPoolExecutor(4) as threads:
        work = [
            threads.submit(
                AuditLog(tmp_path).append, AuditEntry("a", str(n), "done", principal="ann", tenant="t")
            )
            for n in range(200)
        ]
        work += [threads.submit(AuditLog(tmp_path).pseudonymize, "t", "ann") for _ in range(5)]
    assert [task.exception() for task in work] == [None] * 205
    audit.pseudonymize("t", "ann")
    assert {act["object"] for act in audit.read("t", AuditFilter(limit=1000))} == {str(n) for n in range(200)}
    assert b"ann" not in (tmp_path / AUDIT_FILE).read_bytes()


def test_a_disk_that_does_not_take_it_is_an_error_and_the_file_stays(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    audit.append(AuditEntry("a", "1", "done", principal="ann", tenant="t"))
    (tmp_path / f"{AUDIT_FILE}.new").mkdir()
    with pytest.raises(StoreUnavailable, match="could not be rewritten"):
        audit.pseudonymize("t", "ann")
    assert [act["principal"] for act in audit.read(None, AuditFilter())] == ["ann"]


# -- the file ----------------------------------------------------------------------------------------------


def test_the_log_says_it_as_well_and_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as lines:
        AuditLog(tmp_path).record(AuditEntry("key.create", "k", "done", principal="alice"))
        AuditLog(tmp_path / "file").record(AuditEntry("key.revoke", "k", "done"))
    told = [{k: v for k, v in line.items() if k in ("event", "action", "principal")} for line in lines]
    assert told == [
        {"event": "audit", "action": "key.create", "principal": "alice"},
        {"event": "audit", "action": "key.revoke"},
        {"event": "audit_not_written"},
    ]
    assert stat.S_IMODE((tmp_path / AUDIT_FILE).stat().st_mode) == 0o600


def test_a_line_that_was_cut_hides_no_other_and_a_moved_file_begins_anew(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)
    audit.record(AuditEntry("a", "1", "done"))
    with (tmp_path / AUDIT_FILE).open("a") as file:
        file.write('{"at": 1, "act\n')
    audit.record(AuditEntry("a", "2", "done"))
    assert [act["object"] for act in audit.read(None, AuditFilter())] == ["2", "1"]
    (tmp_path / AUDIT_FILE).rename(tmp_path / "old")
    assert audit.read(None, AuditFilter()) == []
    audit.record(AuditEntry("a", "3", "done"))
    assert [act["object"] for act in audit.read(None, AuditFilter())] == ["3"]


def test_a_disk_that_takes_a_part_of_a_line_is_an_error_and_the_next_line_stays(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; from astromesh.access.audit import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (40, 40))\n"
        "try: AuditLog(Path(sys.argv[1])).append(AuditEntry('a', '1', 'done'))\n"
        "except OSError as error: print(error.strerror)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "No space left on device\n"
    assert (tmp_path / AUDIT_FILE).stat().st_size == 40
    AuditLog(tmp_path).append(AuditEntry("a", "2", "done"))
    assert [act["object"] for act in AuditLog(tmp_path).read(None, AuditFilter())] == ["2"]


def test_making_and_revoking_keys_is_noted_without_the_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    access.create("site", scope=["agents:run"], user="web", tenant="acme", data=tmp_path, json=True)
    key = json.loads(capsys.readouterr().out)
    access.revoke(key["id"], tmp_path)
    access.audit(tmp_path, tenant="acme", limit=10, json=True)
    found = json.loads(capsys.readouterr().out)
    assert [(a["action"], a["object"], a["outcome"]) for a in found] == [
        ("key.revoke", key["id"], "done"),
        ("key.create", key["id"], "done"),
    ]
    assert found[0]["principal"].startswith("shell:")
    assert found[1]["detail"] == "agents:run"
    assert key["token"] not in (tmp_path / AUDIT_FILE).read_text()


def test_the_newest_acts_that_match_are_read_up_to_the_limit(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path, ManualClock(1.0))
    for number in range(6):
        principal = ("ada", "bob")[number % 2]
        audit.append(AuditEntry("key.create", str(number), "done", principal=principal, tenant="acme"))

    def found(tenant: str | None = None, **query: Any) -> list[str]:
        return [str(act["object"]) for act in audit.read(tenant, AuditFilter(**query))]

    assert found(limit=2) == ["5", "4"]
    assert found(limit=2, principal="ada") == ["4", "2"]
    assert found(before=4, limit=3) == ["3", "2", "1"]
    assert found(before=0) == []
    assert [number for number, _ in audit.numbered("acme", AuditFilter(limit=2))] == [5, 4]
    assert (found("other"), found(action="key.revoke"), found(object="3")) == ([], [], ["3"])
