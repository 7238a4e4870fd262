"""What operators look at over HTTP: keys, budgets, channels, faults, manifests."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import yaml

from astromesh.access.keys import ApiKeyRequest, ApiKeyStore
from astromesh.storage.sqlite import FILE, Database
from astromesh.telemetry.clock import SystemClock
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

HEAD = {"apiVersion": "astromesh/v1"}
BUDGETS = {"per_session": {"tokens": 5000}, "per_principal_daily": {"cost_usd": 2}}


async def keys_of(data: Path, *requests: ApiKeyRequest) -> list[str]:
    async with Database(data / FILE) as database:
        store = await ApiKeyStore.open(database, SystemClock())
        return [(await store.create(request))[1] for request in requests]


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_an_admin_creates_lists_and_revokes_keys_of_its_tenant(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest())
    runtime = {**HEAD, "kind": "RuntimeConfig", "spec": {"auth": {"mode": "api_key"}}}
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    admin, other = await keys_of(
        folder / "data",
        ApiKeyRequest("root", frozenset({"admin"}), tenant_id="acme"),
        ApiKeyRequest("root", frozenset({"admin"}), tenant_id="other"),
    )
    async with client_of(runtime_of(folder, ScriptedProvider("fine", repeat=True))) as http:
        body = {"name": "ci", "agents": ["helper"], "user": "ana", "expires_days": 30}
        made = await http.post("/v1/keys", json=body, headers=bearer(admin))
        assert made.status_code == 201
        key = made.json()
        token = key.pop("token")
        assert (key["tenant"], key["user"], key["state"]) == ("acme", "ana", "active")
        assert "agents:run:helper" in key["scopes"]
        run = {"query": "hi", "session_id": "s"}
        ran = await http.post("/v1/agents/helper/run", json=run, headers=bearer(token))
        assert ran.status_code == 200
        listed = await http.get("/v1/keys", headers=bearer(admin))
        assert token not in listed.text
        assert {one["name"] for one in listed.json()["keys"]} == {"root", "ci"}
        # another tenant neither sees nor revokes it
        assert "ci" not in (await http.get("/v1/keys", headers=bearer(other))).text
        path = f"/v1/keys/{key['id']}"
        assert (await http.delete(path, headers=bearer(other))).status_code == 404
        assert (await http.delete(path, headers=bearer(admin))).status_code == 204
        assert (await http.delete(path, headers=bearer(admin))).status_code == 409
        wrong = await http.post("/v1/keys", json={"name": "x", "scopes": ["run"]}, headers=bearer(admin))
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_input")
        acts = (await http.get("/v1/audit?action=key.create", headers=bearer(admin))).json()["acts"]
        assert [act["outcome"] for act in acts] == ["refused", "done"]
        assert acts[1]["object"] == key["id"] and "agents:run:helper" in acts[1]["detail"]
        async with asyncio.timeout(10):  # all processes of the server refuse it soon
            while (await http.get("/v1/agents", headers=bearer(token))).status_code != 401:
                await asyncio.sleep(0.1)


async def test_a_server_without_keys_makes_none(tmp_path: Path) -> None:
    async with client_of(runtime_of(write(tmp_path, manifest()), ScriptedProvider("fine"))) as http:
        refused = await http.post("/v1/keys", json={"name": "ci", "scopes": ["admin"]})
    assert refused.status_code == 409
    assert "auth.mode" in refused.json()["detail"]


async def listed(http: httpx.AsyncClient, name: str) -> list[dict[str, Any]]:
    answer = await http.get(f"/v1/{name}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()[name]
    return found


async def test_budgets_show_what_runs_use(tmp_path: Path) -> None:
    runtime = runtime_of(write(tmp_path, manifest(budgets=BUDGETS)), ScriptedProvider("fine", repeat=True))
    async with client_of(runtime) as http:
        now = {"query": "hi", "session_id": "s-1"}
        assert (await http.post("/v1/agents/helper/run", json=now)).is_success
        day, session = await listed(http, "budgets")
        assert (day["kind"], day["principal"], day["limits"]["cost_usd"]) == ("day", "anonymous", 2)
        assert (session["kind"], session["name"]) == ("session", "s-1")
        assert session["limits"] == {
            "tokens": 5000, "cost_usd": None, "tool_calls": None, "wall_seconds": None,
        }  # fmt: skip
        assert session["used"]["tokens"] > 0


async def test_faults_and_manifests_have_their_places_and_no_literal_key(tmp_path: Path) -> None:
    folder = write(
        tmp_path, manifest(model={"primary": {"provider": "scripted", "model": "m", "api_key": "sk-1"}})
    )
    (folder / "agents" / "broken.agent.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: broken}\nspec: {modell: {}}\n"
    )
    async with client_of(runtime_of(folder, ScriptedProvider("fine", repeat=True))) as http:
        found = await listed(http, "faults")
        fault = next(one for one in found if one["key"] == "spec.modell")
        assert (fault["severity"], fault["file"], fault["line"]) == ("error", "agents/broken.agent.yaml", 4)
        broken = (await http.get("/v1/agents/broken/manifest")).json()
        assert "modell" in broken["source"]
        assert fault in broken["faults"]
        accepted = await http.post("/v1/agents/helper/runs", json={"query": "hi", "session_id": "s"})
        assert accepted.status_code == 202
        shown = (await http.get("/v1/agents/helper/manifest")).json()
        assert shown["file"] == "agents/helper.agent.yaml"
        assert "You are {{ agent_name }}" in shown["source"]
        assert "sk-1" not in str(shown) and str(tmp_path) not in str(shown)
        assert [(one["source"], one["runs"]) for one in shown["versions"]] == [(shown["source"], 1)]
        assert (await http.get("/v1/agents/nobody/manifest")).status_code == 404
