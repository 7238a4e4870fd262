"""providers.yaml of a workflow as models: another spelling of the runtime's provider blocks (E62)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from astromesh.abc.deps import Deps
from astromesh.abc.provider import ModelPort
from astromesh.config.workflow.agents import CredentialSpec, ProviderSpec
from astromesh.core.model_router import ModelRouter
from astromesh.errors import MissingKey
from astromesh.plugins import Plugins
from astromesh.types import CompletionRequest, CompletionResult, Delta
from astromesh.workflow.project import Project
from astromesh.workflow.secrets import secret

#: adapters under other names than their plugins'
ADAPTERS: Mapping[str, str] = {"openai_compat": "openai"}


async def open_models(
    project: Project, plugins: Plugins, deps: Deps, env: Mapping[str, str]
) -> dict[str, ModelPort]:
    """Every model of providers.yaml with its fallbacks, by id.

    Raises:
        ConfigError: a plugin is not installed, or its options are wrong.
    """
    credentials = {c.id: c for c in project.credentials.provider_credentials}
    specs = {spec.id: spec for spec in project.providers.providers}
    opened: dict[str, Any] = {}
    missing: dict[str, MissingKey] = {}
    for name, spec in specs.items():
        try:
            credential = credentials.get(spec.credential or "")
            opened[name] = await _open(spec, credential, plugins, deps, project.folder, env)
        except MissingKey as error:
            missing[name] = error
    models: dict[str, ModelPort] = {}
    for name, spec in specs.items():
        usable = [opened[one] for one in (name, *spec.fallback) if one in opened]
        models[name] = ModelRouter(usable) if usable else Keyless(missing[name])
    return models


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
    plugin = ADAPTERS.get(spec.adapter, spec.adapter)
    options: dict[str, Any] = {"model": spec.model, "timeout": spec.timeout_s, **spec.options}
    if spec.base_url:
        options["endpoint"] = spec.base_url
    if credential is not None:
        options["api_key"] = secret(credential.auth, folder, env)
    provider = await plugins.open("providers", plugin, options, deps)
    if not getattr(provider, "name", ""):
        provider.provider, provider.name = spec.id, f"{spec.id}/{spec.model}"
    deps.resources.on_close(provider.close)
    return provider
