"""providers.yaml of a workflow as models: another spelling of the runtime's provider blocks (E62).

The registry says of each which adapter it is, in which version, whether its credential is there, and how it
fares (document 004, section 8.6).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from astromesh.abc.deps import Deps
from astromesh.abc.provider import ModelPort
from astromesh.config.workflow.agents import CredentialSpec, ProviderSpec
from astromesh.core.health import Health
from astromesh.core.model_router import ModelRouter
from astromesh.errors import MissingKey
from astromesh.plugins import Plugins
from astromesh.types import CompletionRequest, CompletionResult, Delta, JsonObject
from astromesh.workflow.project import Project
from astromesh.workflow.secrets import secret

#: adapters under other names than their plugins'
ADAPTERS: Mapping[str, str] = {"openai_compat": "openai"}


class Models:
    """The models of providers.yaml with their fallbacks; `ports` has them by id once they are open."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._specs = {spec.id: spec for spec in project.providers.providers}
        self._opened: dict[str, Any] = {}
        self._missing: dict[str, MissingKey] = {}
        self._health = Health()
        self.ports: dict[str, ModelPort] = {}

    async def open(self, plugins: Plugins, deps: Deps, env: Mapping[str, str]) -> None:
        """Raises: ConfigError: a plugin is not installed, or its options are wrong."""
        credentials = {c.id: c for c in self._project.credentials.provider_credentials}
        self._opened, self._missing, self._health = {}, {}, Health(clock=deps.clock)
        for name, spec in self._specs.items():
            try:
                credential = credentials.get(spec.credential or "")
                folder = self._project.folder
                self._opened[name] = await _open(spec, credential, plugins, deps, folder, env)
            except MissingKey as error:
                self._missing[name] = error
        self.ports = {name: self._port(name, spec) for name, spec in self._specs.items()}

    def _port(self, name: str, spec: ProviderSpec) -> ModelPort:
        usable = [self._opened[one] for one in (name, *spec.fallback) if one in self._opened]
        return ModelRouter(usable, health=self._health) if usable else Keyless(self._missing[name])

    def told(self) -> list[JsonObject]:
        """`{id, adapter, model, version, credential, health}` of each; no health before the first run."""
        return [self._of(name, spec) for name, spec in self._specs.items()]

    def _of(self, name: str, spec: ProviderSpec) -> JsonObject:
        provider = self._opened.get(name)
        now = self._health.clock.monotonic()
        return {
            "id": name,
            "adapter": self._project.adapters.get(f"providers/{plugin_of(spec)}", spec.adapter),
            "model": spec.model,
            "version": spec.version,
            "credential": "missing" if name in self._missing else spec.credential,
            "health": self._health.monitor(provider).to_json(now) if provider is not None else None,
        }


def plugin_of(spec: ProviderSpec) -> str:
    """The provider plugin that an adapter is."""
    return ADAPTERS.get(spec.adapter, spec.adapter)


def adapters_of(project: Project, plugins: Plugins) -> dict[str, str]:
    """Where the adapters of a workflow come from, as `{group/name: module:Class distribution==version}`."""
    named = {("providers", plugin_of(spec)) for spec in project.providers.providers}
    named |= {("tools", tool.type) for tool in project.tools.tools if tool.type != "python"}
    named |= {("patterns", agent.pattern) for agent in project.agents.values()}
    return {f"{group}/{name}": plugins.origin(group, name) for group, name in sorted(named)}


class Keyless:
    """A model whose secret is missing: who asks it fails (E62)."""

    def __init__(self, error: MissingKey) -> None:
        self._error = error

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        raise MissingKey(str(self._error))

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        yield await self.complete(request)


async def _open(
    spec: ProviderSpec,
    credential: CredentialSpec | None,
    plugins: Plugins,
    deps: Deps,
    folder: Path,
    env: Mapping[str, str],
) -> Any:
    options: dict[str, Any] = {"model": spec.model, "timeout": spec.timeout_s, **spec.options}
    if spec.base_url:
        options["endpoint"] = spec.base_url
    if credential is not None:
        options["api_key"] = secret(credential.auth, folder, env)
    provider = await plugins.open("providers", plugin_of(spec), options, deps)
    if not getattr(provider, "name", ""):
        provider.provider, provider.name = spec.id, f"{spec.id}/{spec.model}"
    deps.resources.on_close(provider.close)
    return provider
