"""`astromesh runs`: what became of runs, ending them, deciding for those that wait.

Without `--url` the commands work on the store of runs itself, as the operator of the installation: whatever
server has a run sees the request within a second, and a decision without any server is taken up by the next
one. With `--url` they ask a server, as the principal of the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlencode

import orjson
import typer

from astromesh.access.audit import MAX_OBJECT_LENGTH, AuditEntry
from astromesh.access.scopes import Viewer
from astromesh.cli.commands.audit import record_shell_act, shell_user
from astromesh.cli.terminal import note, plain, print_json, print_table
from astromesh.durable.approvals import decide, decisions_of
from astromesh.durable.base import ENDED_STATUSES, RunQuery, RunRow, RunStore
from astromesh.durable.remote_cancel import cancel_remotely
from astromesh.durable.run_registry import RunFilter, run_json
from astromesh.errors import AstromeshError, InvalidInput, NetError, RunNotFound, UpstreamError
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.runtime.config_loader import load_configuration
from astromesh.runtime.runs import Decision
from astromesh.telemetry.clock import SystemClock
from astromesh.types import JsonObject

#: seconds that a cancel waits for the run's end
CANCEL_SECONDS, _POLL_SECONDS = 10.0, 0.1


class Where(NamedTuple):
    """Where runs are looked for.

    Args:
        places: folders of the configuration and of the data.
        url: of a server; empty: the store itself.
        key: API key or token for the server.
        tenant: of the runs, in the store.
    """

    folders: tuple[Path, Path]
    url: str = ""
    key: str = ""
    tenant: str = "default"


class Runs(Protocol):
    async def list(self, wanted: RunFilter) -> list[JsonObject]: ...

    async def show(self, run_id: str) -> JsonObject: ...

    async def cancel(self, run_id: str) -> JsonObject: ...

    async def resume(self, run_id: str, decision: Decision) -> JsonObject: ...


# -- the commands --------------------------------------------------------------------------------------------


def list_runs(where: Where, wanted: RunFilter, *, as_json: bool) -> None:
    """Prints runs, the newest first."""

    async def ask() -> list[JsonObject]:
        async with _open_runs(where) as runs:
            return await runs.list(wanted)

    found = asyncio.run(ask())
    if as_json:
        print_json(found)
    elif found:
        print_table(("RUN", "AGENT", "SESSION", "STATUS", "CREATED", "TOKENS"), map(_row, found))
    else:
        note("There are no such runs.")


def show(where: Where, run_id: str, *, as_json: bool) -> None:
    """Prints one run."""

    async def ask() -> JsonObject:
        async with _open_runs(where) as runs:
            return await runs.show(run_id)

    _print(asyncio.run(ask()), as_json=as_json)


def cancel(where: Where, run_id: str, *, as_json: bool) -> None:
    """Ends a run, and prints what became of it."""

    async def ask() -> JsonObject:
        async with _open_runs(where) as runs:
            return await runs.cancel(run_id)

    _print(_record(where, AuditEntry("run.cancel", run_id, "done"), ask), as_json=as_json)


def resume(where: Where, run_id: str, decision: Decision, *, as_json: bool) -> None:
    """Decides for a run that waits."""

    async def ask() -> JsonObject:
        async with _open_runs(where) as runs:
            return await runs.resume(run_id, decision)

    _print(_record(where, AuditEntry("run.decide", run_id, "done", decision.decision), ask), as_json=as_json)


def _record(where: Where, act: AuditEntry, ask: Callable[[], Coroutine[Any, Any, JsonObject]]) -> JsonObject:
    """Does it, and notes who did: a server that is asked notes it itself."""
    act = act._replace(object=act.object[:MAX_OBJECT_LENGTH])
    try:
        run = asyncio.run(ask())
    except AstromeshError:
        if not where.url:
            record_shell_act(where.folders[1], act._replace(outcome="refused"), where.tenant)
        raise
    if not where.url:
        record_shell_act(where.folders[1], act, where.tenant)
    return run


def parse_decision(kind: str, arguments: str, answer: str) -> Decision:
    """What the options say. Raises: InvalidInput: they do not go together."""
    if kind not in ("approve", "deny", "answer"):
        raise InvalidInput(f"{kind!r} is no decision: approve, deny or answer.")
    if arguments and kind != "approve":
        raise InvalidInput("--arguments go with approve alone.")
    if (kind == "answer") != bool(answer):
        raise InvalidInput("answer needs --answer TEXT, and nothing else has one.")
    try:
        wanted = orjson.loads(arguments) if arguments else None
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"--arguments are not JSON: {error}.") from error
    if wanted is not None and not isinstance(wanted, dict):
        raise InvalidInput("--arguments must be a JSON object.")
    return Decision(kind, wanted, answer or None)  # type: ignore[arg-type]


def _row(run: JsonObject) -> tuple[str, ...]:
    usage = run["usage"]
    tokens = usage["input_tokens"] + usage["output_tokens"]
    created = (run["created_at"] or "")[:19].replace("T", " ")
    return run["run_id"], run["agent"], run["session_id"], run["status"], created, str(tokens)


def _print(run: JsonObject, *, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    shown = {
        key: run[key] for key in ("run_id", "agent", "session_id", "status", "created_at", "finished_at")
    }
    waits, error, result = run["waiting_for"], run["error"], run["result"] or {}
    if waits:
        shown["waiting_for"] = f"{waits['kind']} {waits['name']} {orjson.dumps(waits['arguments']).decode()}"
    if error:
        shown["error"] = f"{error['code']}: {error['detail']}"
    if result.get("uncancellable"):
        shown["uncancellable"] = ", ".join(result["uncancellable"])
    for name, value in shown.items():
        if value:
            typer.echo(f"{name + ':':14}{plain(str(value))}")
    for one in run.get("decisions") or ():
        typer.echo(f"{'decided:':14}{plain(_format_decision(one))}")
    if result.get("response"):
        typer.echo(f"\n{plain(result['response'])}")


def _format_decision(one: JsonObject) -> str:
    about = f"{one['kind']} {one['name']} {orjson.dumps(one['arguments']).decode()}"
    instead = f", instead {orjson.dumps(one['edited']).decode()}" if "edited" in one else ""
    return f"{one['decision']} by {one['by']}: {about}{instead}"


# -- in the store --------------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_runs(where: Where) -> AsyncIterator[Runs]:
    if where.url:
        async with Http() as http:
            yield _ServerRuns(where, http)
        return
    resources = Resources()
    try:
        yield _StoreRuns(await _store(where, resources), where.tenant)
    finally:
        await resources.close()


async def _store(where: Where, resources: Resources) -> RunStore:
    url = load_configuration(where.folders[0], Plugins()).runtime.spec.storage.url.get_secret_value()
    kind = "sqlite" if not url or url.startswith("sqlite:") else "postgres"
    deps = Deps(
        clock=SystemClock(), data_dir=where.folders[1], config_dir=where.folders[0], storage_url=url,
        resources=resources,
    )  # fmt: skip
    store: RunStore = await Plugins().open("run_stores", kind, {}, deps)
    return store


class _StoreRuns:
    def __init__(self, store: RunStore, tenant: str) -> None:
        self._store, self._viewer = store, Viewer(tenant, None)

    async def list(self, wanted: RunFilter) -> list[JsonObject]:
        agent, session, status, limit = wanted
        rows, _ = await self._store.list(RunQuery(*self._viewer, agent, session, status, limit))
        return [run_json(row) for row in rows]

    async def show(self, run_id: str) -> JsonObject:
        row = await self._row(run_id)
        return {**run_json(row), "decisions": decisions_of(await self._store.steps(row.run_id))}

    async def cancel(self, run_id: str) -> JsonObject:
        row = await self._store.get(run_id)
        if row is None or (not row.durable and row.status not in ENDED_STATUSES):
            line = await cancel_remotely(self._store, SystemClock(), run_id, self._viewer, CANCEL_SECONDS)
            if line is None:
                raise RunNotFound(f"There is no run {run_id!r} in the store, and no server has it.")
            return line
        row = await self._row(run_id)
        if row.status not in ENDED_STATUSES:
            await self._store.cancel(run_id)
        return run_json(await self._ended(run_id))

    async def resume(self, run_id: str, decision: Decision) -> JsonObject:
        told: dict[str, Any] = {key: value for key, value in decision._asdict().items() if value is not None}
        made = {"by": shell_user(), "decided_at": SystemClock().now()}
        return run_json(await decide(self._store, await self._row(run_id), {**told, **made}))

    async def _row(self, run_id: str) -> RunRow:
        row = await self._store.get(run_id)
        if row is None or row.tenant != self._viewer.tenant:
            raise RunNotFound(
                f"There is no run {run_id!r} of the tenant {self._viewer.tenant!r} in the store."
            )
        return row

    async def _ended(self, run_id: str) -> RunRow:
        row = await self._row(run_id)
        for _ in range(int(CANCEL_SECONDS / _POLL_SECONDS)):
            if row.status in ENDED_STATUSES:
                break
            await asyncio.sleep(_POLL_SECONDS)
            row = await self._row(run_id)
        return row


# -- over HTTP -----------------------------------------------------------------------------------------------


class _ServerError(UpstreamError):
    """What a server answered."""


class _ServerRuns:
    def __init__(self, where: Where, http: Http) -> None:
        self._base, self._http = where.url.rstrip("/"), http
        self._headers = {"content-type": "application/json"}
        if where.key:
            self._headers["authorization"] = f"Bearer {where.key}"

    async def list(self, wanted: RunFilter) -> list[JsonObject]:
        found: list[JsonObject] = (await self._request("GET", f"?{urlencode(wanted._asdict())}"))["runs"]
        return found

    async def show(self, run_id: str) -> JsonObject:
        return await self._request("GET", f"/{quote(run_id, safe='')}")

    async def cancel(self, run_id: str) -> JsonObject:
        return await self._request("POST", f"/{quote(run_id, safe='')}/cancel")

    async def resume(self, run_id: str, decision: Decision) -> JsonObject:
        body = {key: value for key, value in decision._asdict().items() if value is not None}
        return await self._request("POST", f"/{quote(run_id, safe='')}/resume", body)

    async def _request(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        data = None if body is None else orjson.dumps(body)
        url = f"{self._base}/v1/runs{path}"
        try:
            answer = await self._http.request(method, url, body=data, headers=self._headers)
            said: JsonObject = orjson.loads(answer.body)
        except NetError as error:
            raise _ServerError(f"{self._base} does not answer: {error}") from error
        except orjson.JSONDecodeError as error:
            raise _ServerError(f"{self._base} is no astromesh server: it answers no JSON.") from error
        if answer.status >= 400:
            raise _failure(said)
        return said


def _failure(body: JsonObject) -> AstromeshError:
    error = RunNotFound if body.get("code") == "run_not_found" else _ServerError
    return error(str(body.get("detail", body)))
