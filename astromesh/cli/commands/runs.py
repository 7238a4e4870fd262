"""`astromesh runs`: list, show, cancel and resume runs.

Without `--url`, the commands use the store of runs itself, as the operator of the installation. The server of
a run sees a request within a second; without any server, the next one to start sees a decision. With `--url`,
they call a server, as the principal of the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote, urlencode

import orjson
import typer

from astromesh.access.audit import MAX_OBJECT_LENGTH, AuditEntry
from astromesh.access.scopes import Viewer
from astromesh.cli.commands.access import record_shell_act, shell_user
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.terminal import note, plain, print_json, print_table
from astromesh.durable.approvals import decide, decisions_of
from astromesh.durable.base import ENDED_STATUSES, RunQuery, RunRow, RunStatus, RunStore
from astromesh.durable.remote_runs import cancel_remotely
from astromesh.durable.run_registry import run_json
from astromesh.errors import AstromeshError, InvalidInput, NetError, RunNotFound, UpstreamError
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins, Resources
from astromesh.runtime.config_loader import load_configuration
from astromesh.runtime.runs import Decision
from astromesh.telemetry.clock import SystemClock
from astromesh.types import JsonObject

app = typer.Typer()
T = TypeVar("T")
Url = Annotated[
    str,
    typer.Option(
        "--url", metavar="URL", envvar="ASTROMESH_URL", help="URL of a server; default: use the store."
    ),
]
ApiKey = Annotated[
    str,
    typer.Option("--key", metavar="KEY", envvar="ASTROMESH_API_KEY", help="API key or token for the server."),
]
Tenant = Annotated[str, typer.Option("--tenant", metavar="ID", help="Tenant of the runs; without --url.")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id that 'runs list' shows.")]
#: seconds that a cancel waits for the run's end
CANCEL_SECONDS, _POLL_SECONDS = 10.0, 0.1


class Place(NamedTuple):
    """Where the runs are.

    Args:
        folders: of the configuration and of the data.
        url: of a server; empty: the store itself.
        key: API key or token for the server.
        tenant: of the runs, in the store.
    """

    folders: tuple[Path, Path]
    url: str = ""
    key: str = ""
    tenant: str = "default"


class Runs(Protocol):
    async def list(self, query: RunQuery) -> list[JsonObject]: ...

    async def show(self, run_id: str) -> JsonObject: ...

    async def cancel(self, run_id: str) -> JsonObject: ...

    async def resume(self, run_id: str, decision: Decision) -> JsonObject: ...


@app.command("list")
def list_runs(
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    agent: Annotated[str, typer.Option(metavar="AGENT", help="Only runs of this agent.")] = "",
    session: Annotated[
        str, typer.Option("--session", "-s", metavar="ID", help="Only runs of this session.")
    ] = "",
    status: Annotated[
        RunStatus | None,
        typer.Option(metavar="STATUS", help="queued, running, waiting, completed, failed or cancelled."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="At most this many, the newest.")
    ] = 50,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """List runs, newest first."""
    place = Place(folders_of(config, data), url, key, tenant)
    query = RunQuery(tenant, None, agent, session, status or "", limit)
    found = asyncio.run(_with_runs(place, lambda runs: runs.list(query)))
    if json:
        print_json(found)
    elif found:
        print_table(("RUN", "AGENT", "SESSION", "STATUS", "CREATED", "TOKENS"), map(_row, found))
    else:
        note("No run matches.")


@app.command()
def show(
    run: RunId,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Show one run.

    It prints the state, the answer or the error, and what the run waits for.
    """
    place = Place(folders_of(config, data), url, key, tenant)
    _print(place, asyncio.run(_with_runs(place, lambda runs: runs.show(run))), as_json=json)


@app.command()
def cancel(
    run: RunId,
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Cancel a run and all its nested runs.

    It does not matter which server executes them.
    """
    place = Place(folders_of(config, data), url, key, tenant)
    act = AuditEntry("run.cancel", run, "done")
    _print(place, _audited(place, act, lambda runs: runs.cancel(run)), as_json=json)


@app.command()
def resume(
    run: RunId,
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="approve, deny or answer.")],
    config: Config = CONFIG_FOLDER,
    data: Data = DATA_FOLDER,
    arguments: Annotated[str, typer.Option(metavar="JSON", help="With approve: replace the model's.")] = "",
    answer: Annotated[str, typer.Option(metavar="TEXT", help="With answer: its text.")] = "",
    question: Annotated[str, typer.Option(metavar="ID", help="Of several questions: which.")] = "",
    note: Annotated[str, typer.Option(metavar="TEXT", help="Why: shown with the decision.")] = "",
    url: Url = "",
    key: ApiKey = "",
    tenant: Tenant = "default",
    json: Json = False,
) -> None:
    """Approve, deny or answer what a run asks a person."""
    made = parse_decision(decision, arguments, answer)._replace(question=question or None, note=note or None)
    place = Place(folders_of(config, data), url, key, tenant)
    act = AuditEntry("run.decide", run, "done", made.decision)
    _print(place, _audited(place, act, lambda runs: runs.resume(run, made)), as_json=json)


async def _with_runs(place: Place, call: Callable[[Runs], Awaitable[T]]) -> T:
    async with _open_runs(place) as runs:
        return await call(runs)


def _audited(place: Place, act: AuditEntry, call: Callable[[Runs], Awaitable[JsonObject]]) -> JsonObject:
    """Calls, and records the act in the audit log. A server records acts over HTTP itself."""
    act = act._replace(object=act.object[:MAX_OBJECT_LENGTH])
    try:
        run = asyncio.run(_with_runs(place, call))
    except AstromeshError:
        if not place.url:
            record_shell_act(place.folders[1], act._replace(outcome="refused"), place.tenant)
        raise
    if not place.url:
        record_shell_act(place.folders[1], act, place.tenant)
    return run


def parse_decision(kind: str, arguments: str, answer: str) -> Decision:
    """Parses the options of a decision. Raises: InvalidInput: they contradict each other."""
    if kind not in ("approve", "deny", "answer"):
        raise InvalidInput(f"Unknown decision {kind!r}. Use approve, deny or answer.")
    if arguments and kind != "approve":
        raise InvalidInput("Use --arguments only with approve.")
    if (kind == "answer") != bool(answer):
        raise InvalidInput("Use --answer TEXT with the decision answer, and only with it.")
    try:
        edited = orjson.loads(arguments) if arguments else None
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"--arguments are not JSON: {error}.") from error
    if edited is not None and not isinstance(edited, dict):
        raise InvalidInput("--arguments must be a JSON object.")
    return Decision(kind, edited, answer or None)  # type: ignore[arg-type]


def _row(run: JsonObject) -> tuple[str, ...]:
    usage = run["usage"]
    tokens = usage["input_tokens"] + usage["output_tokens"]
    created = (run["created_at"] or "")[:19].replace("T", " ")
    return run["run_id"], run["agent"], run["session_id"], run["status"], created, str(tokens)


def _print(place: Place, run: JsonObject, *, as_json: bool) -> None:
    if as_json:
        print_json(run)
        return
    fields = {key: value for key, value in run.items() if not isinstance(value, dict | list)}
    waits, error, result = run["waiting_for"], run["error"], run["result"] or {}
    if waits:
        fields["waiting_for"] = f"{waits['kind']} {waits['name']} {orjson.dumps(waits['arguments']).decode()}"
    if error:
        fields["error"] = f"{error['code']}: {error['detail']}"
    if result.get("uncancellable"):
        fields["uncancellable"] = ", ".join(result["uncancellable"])
    for name, value in fields.items():
        if value:
            typer.echo(f"{name + ':':14}{plain(str(value))}")
    for one in run.get("decisions") or ():
        typer.echo(f"{'decided:':14}{plain(_format_decision(one))}")
    if place.url:
        typer.echo(f"{'link:':14}{place.url.rstrip('/')}/console/#/runs/{run['run_id']}")
    if result.get("response"):
        typer.echo(f"\n{plain(result['response'])}")


def _format_decision(one: JsonObject) -> str:
    about = f"{one['kind']} {one['name']} {orjson.dumps(one['arguments']).decode()}"
    instead = f", instead {orjson.dumps(one['edited']).decode()}" if "edited" in one else ""
    note = f" ({one['note']})" if one.get("note") else ""
    return f"{one['decision']} by {one['by']}: {about}{instead}{note}"


# -- runs in the store -------------------------------------------------------------------------------------


@asynccontextmanager
async def _open_runs(place: Place) -> AsyncIterator[Runs]:
    if place.url:
        async with Http() as http:
            yield _ServerRuns(place, http)
        return
    resources = Resources()
    try:
        yield _StoreRuns(await _store(place, resources), place.tenant)
    finally:
        await resources.close()


async def _store(place: Place, resources: Resources) -> RunStore:
    url = load_configuration(place.folders[0], Plugins()).runtime.spec.storage.url.get_secret_value()
    kind = "sqlite" if not url or url.startswith("sqlite:") else "postgres"
    deps = Deps(
        clock=SystemClock(), data_dir=place.folders[1], config_dir=place.folders[0], storage_url=url,
        resources=resources,
    )  # fmt: skip
    store: RunStore = await Plugins().open("run_stores", kind, {}, deps)
    return store


class _StoreRuns:
    def __init__(self, store: RunStore, tenant: str) -> None:
        self._store, self._viewer = store, Viewer(tenant, None)

    async def list(self, query: RunQuery) -> list[JsonObject]:
        rows, _ = await self._store.list(query)
        return [run_json(row) for row in rows]

    async def show(self, run_id: str) -> JsonObject:
        row = await self._row(run_id)
        return {**run_json(row), "decisions": decisions_of(await self._store.steps(row.run_id))}

    async def cancel(self, run_id: str) -> JsonObject:
        row = await self._store.get(run_id)
        if row is None or (not row.durable and row.status not in ENDED_STATUSES):
            state = await cancel_remotely(self._store, SystemClock(), run_id, self._viewer, CANCEL_SECONDS)
            if state is None:
                raise RunNotFound(f"There is no run {run_id!r} in the store or in a server.")
            return state
        row = await self._row(run_id)
        if row.status not in ENDED_STATUSES:
            await self._store.cancel(run_id)
        return run_json(await self._ended(run_id))

    async def resume(self, run_id: str, decision: Decision) -> JsonObject:
        record: dict[str, Any] = {k: v for k, v in decision._asdict().items() if v is not None}
        which = record.pop("question", "")
        record |= {"by": shell_user(), "decided_at": SystemClock().now()}
        return run_json(await decide(self._store, await self._row(run_id), {which: record}))

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


# -- runs of a server --------------------------------------------------------------------------------------


class _ServerError(UpstreamError):
    """A server answers with an error, or not at all."""


class _ServerRuns:
    def __init__(self, place: Place, http: Http) -> None:
        self._base, self._http = place.url.rstrip("/"), http
        self._headers = {"content-type": "application/json"}
        if place.key:
            self._headers["authorization"] = f"Bearer {place.key}"

    async def list(self, query: RunQuery) -> list[JsonObject]:
        # the key names the tenant and the owner
        names = ("agent", "session", "status", "limit")
        parameters = urlencode({name: getattr(query, name) for name in names})
        found: list[JsonObject] = (await self._request("GET", f"?{parameters}"))["runs"]
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
            response = await self._http.request(method, url, body=data, headers=self._headers)
            content: JsonObject = orjson.loads(response.body)
        except NetError as error:
            raise _ServerError(f"{self._base} does not answer: {error}") from error
        except orjson.JSONDecodeError as error:
            raise _ServerError(
                f"{self._base} is not an astromesh server: its response is not JSON."
            ) from error
        if response.status >= 400:
            raise _failure(content)
        return content


def _failure(body: JsonObject) -> AstromeshError:
    error = RunNotFound if body.get("code") == "run_not_found" else _ServerError
    hint = (
        " Give it to the command by --key or ASTROMESH_API_KEY." if body.get("code") == "unauthorized" else ""
    )
    return error(f"{body.get('detail', body)}{hint}")
