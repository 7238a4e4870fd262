"""`astromesh doctor` and `migrate`: check what the agents need, bring the tables of stores up to date."""

from __future__ import annotations

import asyncio
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal, NamedTuple

import typer

from astromesh import __version__
from astromesh.cli.commands.validate import load_valid
from astromesh.cli.errors import USAGE_ERROR
from astromesh.cli.options import CONFIG_FOLDER, DATA_FOLDER, Config, Data, Json, folders_of
from astromesh.cli.terminal import note, plain, print_json
from astromesh.config.agent import AgentManifest
from astromesh.config.folder import Configuration
from astromesh.errors import AstromeshError, ProviderUnauthorized, StoreUnavailable
from astromesh.logs import configure_logging
from astromesh.plugins import Plugins
from astromesh.runtime.config_loader import load_configuration
from astromesh.runtime.engine import AgentRuntime
from astromesh.runtime.inbox import open_inbox_worker
from astromesh.runtime.monitoring import CheckResult, check_readiness
from astromesh.storage.private_files import private_folder
from astromesh.text import counted

#: `wrong`: somebody must repair it although every agent can run; `failed`: an agent cannot run
State = Literal["ok", "note", "wrong", "failed"]
_SIGNS: dict[State, tuple[str, str]] = {
    "ok": ("✓", typer.colors.GREEN),
    "note": ("•", typer.colors.YELLOW),
    "wrong": ("✗", typer.colors.RED),
    "failed": ("✗", typer.colors.RED),
}
_EXTRA = re.compile(r"^([A-Za-z0-9._-]+).*extra == ['\"]([\w-]+)['\"]")


class Finding(NamedTuple):
    """The result of one check.

    Args:
        part: the area of the check, e.g. `agents`.
        state: a `note` needs no repair.
    """

    part: str
    subject: str
    state: State
    detail: str = ""


def doctor(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER, json: Json = False) -> None:
    """Check the settings, stores and models that the agents need."""
    folders = folders_of(config, data)
    configure_logging("error")
    findings = [*_versions(), *_extras(), _data_folder(data), *asyncio.run(diagnose(folders))]
    if json:
        print_json([finding._asdict() for finding in findings])
    else:
        _print_findings(findings)
    raise typer.Exit(exit_code_of(findings))


def exit_code_of(findings: list[Finding]) -> int:
    """Returns 2 where an agent cannot run, else 0."""
    return USAGE_ERROR if any(finding.state == "failed" for finding in findings) else 0


def _print_findings(findings: list[Finding]) -> None:
    part = ""
    for finding in findings:
        if finding.part != part:
            part = finding.part
            typer.secho(f"\n{part}" if part != findings[0].part else part, bold=True)
        sign, colour = _SIGNS[finding.state]
        detail = f"  {finding.detail}" if finding.detail else ""
        typer.echo(f"  {typer.style(sign, fg=colour)} {plain(finding.subject + detail)}")


# -- the installation --------------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    yield Finding("installation", f"astromesh {__version__}", "ok", f"Python {platform.python_version()}")


def _extras() -> Iterator[Finding]:
    """The optional extras, each with its missing packages."""
    extras: dict[str, list[str]] = {}
    for requirement in requires("astromesh") or ():
        if found := _EXTRA.match(requirement):
            extras.setdefault(found[2], []).append(found[1])
    for extra, packages in sorted(extras.items()):
        missing = [package for package in packages if not _installed(package)]
        if missing:
            detail = f"not installed: {', '.join(missing)}; pip install 'astromesh[{extra}]'"
            yield Finding("installation", f"extra {extra}", "note", detail)
        else:
            yield Finding("installation", f"extra {extra}", "ok")


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def _data_folder(folder: Path) -> Finding:
    try:
        private_folder(folder)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"astromesh")
    except OSError as error:
        return Finding("data folder", str(folder), "failed", f"cannot be written: {error.strerror}")
    return Finding("data folder", str(folder), "ok", "can be written")


# -- the configuration and what it needs -------------------------------------------------------------------


async def diagnose(folders: tuple[Path, Path]) -> list[Finding]:
    """Checks the configuration, and the runtime that it opens."""
    configuration = load_configuration(folders[0], Plugins())
    findings = [*_configuration_findings(configuration)]
    if configuration.faults:
        return findings
    try:
        async with AgentRuntime(folders[0], data_dir=folders[1]) as runtime:
            return [*findings, *await _runtime_findings(runtime)]
    except AstromeshError as error:
        return [*findings, Finding("runtime", "does not start", "failed", str(error))]


def _configuration_findings(configuration: Configuration) -> Iterator[Finding]:
    folder = str(configuration.folder)
    faults = configuration.every_fault()
    yield Finding(
        "configuration", folder, "failed" if faults else "ok", counted(len(faults), "fault") if faults else ""
    )
    yield from (Finding("configuration", str(fault), "failed") for fault in faults)
    yield from (Finding("configuration", str(warning), "note") for warning in configuration.warnings)


async def _runtime_findings(runtime: AgentRuntime) -> list[Finding]:
    findings = [*await _store_of_runs(runtime)]
    found = await check_readiness(runtime)
    findings += [
        Finding("stores and providers", name, _state(name, answer), answer.detail)
        for name, answer in found.results.items()
    ]
    for name, faults in runtime.broken.items():
        findings.append(Finding("agents", name, "failed", "; ".join(map(str, faults))))
    models: list[Finding] = []
    for name, agent in runtime.agents.items():
        if name in found.agents_without_model:
            findings.append(Finding("agents", name, "failed", "none of its models answers"))
        else:
            findings.append(Finding("agents", name, "ok", "can run"))
        models += _models(name, agent.manifest, found.results)
    return findings + models


async def _store_of_runs(runtime: AgentRuntime) -> tuple[Finding, ...]:
    """Opens the store, so that it is checked with the others. A server opens it with its first stored run."""
    try:
        await runtime.stores.open_runs()
    except AstromeshError as error:
        return (Finding("stores and providers", "store:runs", "failed", str(error)),)
    return ()


def _state(name: str, answer: CheckResult) -> State:
    """A provider without an answer is a note, because an agent may have another. A refused key is wrong."""
    if answer.code == "ok":
        return "note" if answer.detail else "ok"
    if not name.startswith("provider:"):
        return "failed"
    return "wrong" if answer.code == ProviderUnauthorized.code else "note"


def _models(agent: str, manifest: AgentManifest, answers: Mapping[str, CheckResult]) -> Iterator[Finding]:
    for role, models in manifest.spec.model.sets():
        for block in models.blocks():
            subject = f"{agent}{f' as {role}' if role else ''}: {block.name}"
            name = f"provider:{block.name}"
            if block.skipped:
                yield Finding("models", subject, "note", f"skipped: {block.skipped}")
            elif name in answers and (answers[name].code != "ok" or answers[name].detail):
                yield Finding("models", subject, _state(name, answers[name]), answers[name].detail)
            else:
                yield Finding("models", subject, "ok", "usable")


# -- migrate -------------------------------------------------------------------------------------------------


def migrate(config: Config = CONFIG_FOLDER, data: Data = DATA_FOLDER) -> None:
    """Bring the tables of every store up to date. Servers do it as well when they start."""
    folders = folders_of(config, data)
    asyncio.run(_migrate(folders, load_valid(folders[0], strict=False)))
    note("The tables of all stores are up to date.")


async def _migrate(folders: tuple[Path, Path], configuration: Configuration) -> None:
    """Raises: StoreUnavailable: a database does not answer."""
    runtime = AgentRuntime(folders[0], data_dir=folders[1])
    runtime.durable.executes = False
    await runtime.bootstrap(configuration)
    try:
        if waiting := runtime.state.recovering:
            raise StoreUnavailable(f"The stores of {', '.join(sorted(waiting))} do not answer.")
        for store in (await runtime.durable.open(), await runtime.stores.open_tasks()):
            await store.ping()
        await runtime.stores.open_budgets()
        await open_inbox_worker(runtime)
    finally:
        await runtime.close(0.0)
