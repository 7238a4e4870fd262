"""agents.yaml, tools.yaml, providers.yaml and provider_credentials.yaml of a workflow.

The engine opens a model as a provider plugin and an agent as a pattern.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from astromesh.config.agent import ApprovalRule
from astromesh.config.environment import VariableName
from astromesh.config.records import Count, JsonMap, Seconds
from astromesh.config.workflow.manifest import (
    ContextName,
    Function,
    Id,
    IsolationField,
    ManifestFile,
    MemoryField,
    RefersTo,
    SchemaRef,
    Section,
    ToolNames,
)
from astromesh.types import Effect


class AgentConfig(Section):
    temperature: float | None = Field(None, ge=0, description="Sent with every call.")
    top_p: float | None = Field(None, gt=0, le=1, description="Sent with every call.")
    max_tokens: Count | None = Field(None, description="Most tokens of one answer.")
    seed: int | None = Field(None, description="Sent with every call.")
    max_tool_rounds: Count = Field(10, description="Rounds of tool calls before the answer.")


class OwnAgent(Section):
    id: Id = Field(description="Unique among the agents.")
    model: Annotated[str, RefersTo("model")] = Field(
        min_length=1, description="Id of a model in providers.yaml."
    )
    system_prompt: str = Field("", description="System prompt; plain text.")
    pattern: Annotated[str, RefersTo("pattern")] = Field(
        "react", min_length=1, description="Name of the orchestration pattern."
    )
    pattern_options: JsonMap = Field(default_factory=dict, description="The pattern's own options.")
    schema_in: SchemaRef = Field(None, description="Schema of its input, if the node has none.")
    schema_out: SchemaRef = Field(None, description="Schema of its output, if the node has none.")
    context: ContextName = Field("none", description="The profile that it was written for.")
    tools: ToolNames = Field((), description="Tools that it may use, if the node also names them.")
    config: AgentConfig = AgentConfig()


class AgentsFile(ManifestFile):
    agents: tuple[OwnAgent, ...] = ()


# -- tools -------------------------------------------------------------------------------------------------


class ToolHead(Section):
    id: Id = Field(description="Unique among the tools; the name that models see.")
    description: str = Field("", description="Description for the model.")
    schema_in: SchemaRef = Field(None, description="Schema of the arguments, type: object.")
    schema_out: SchemaRef = Field(None, description="Schema of the result.")
    timeout_s: Seconds = Field(30.0, description="Seconds that one call may take.")
    effect: Effect = Field("external", description="Effect on the world.")
    approval: Literal["none", "required"] | ApprovalRule = Field(
        "none", description="Whether a person must approve calls: all, or those that a rule selects."
    )


class PythonTool(ToolHead):
    type: Literal["python"] = "python"
    entrypoint: Annotated[Function, RefersTo("op")] = Field(
        description="module:function, called with the arguments."
    )
    isolation: IsolationField = None
    max_memory_mb: MemoryField = None


class BuiltinTool(ToolHead):
    type: str = Field(min_length=1, description="A kind of tool of the runtime: builtin, webhook, internal …")
    options: JsonMap = Field(default_factory=dict, description="The options of that kind.")
    root: str | None = Field(None, description="Folder that confines file tools.")
    allow_network: bool = Field(False, description="Whether the tool may use the network.")
    allow_shell: bool = Field(False, description="Whether the tool may run programs.")


def _tool_tag(value: Any) -> str:
    kind = value.get("type", "python") if isinstance(value, dict) else getattr(value, "type", "python")
    return "python" if kind == "python" else "other"


ToolSpecs = Annotated[
    Annotated[PythonTool, Tag("python")] | Annotated[BuiltinTool, Tag("other")], Discriminator(_tool_tag)
]


class ToolsFile(ManifestFile):
    tools: tuple[ToolSpecs, ...] = ()


# -- models ------------------------------------------------------------------------------------------------


#: adapters under other names than their plugins'
ADAPTER_PLUGINS: Mapping[str, str] = {"openai_compat": "openai"}


class ProviderSpec(Section):
    id: Id = Field(description="Unique among the models.")
    kind: Literal["llm"] = Field("llm", description="What it provides.")
    adapter: Annotated[str, RefersTo("adapter")] = Field(
        min_length=1, description="Provider plugin: openai_compat, anthropic, ollama …"
    )
    model: str = Field("", description="The model's name at the service.")
    base_url: str = Field("", description="The service's address; empty: its own.")
    credential: Annotated[str | None, RefersTo("credential")] = Field(
        None, description="Id in provider_credentials.yaml."
    )
    fallback: Annotated[tuple[str, ...], RefersTo("model")] = Field(
        (), description="Models that are called when this one fails."
    )
    version: str = Field("", description="Version of the adapter's settings, free text.")
    timeout_s: Seconds = Field(60.0, description="Seconds of one model call.")
    options: JsonMap = Field(default_factory=dict, description="Further options of the plugin.")


class ProvidersFile(ManifestFile):
    providers: tuple[ProviderSpec, ...] = ()


class AuthSpec(Section):
    type: Literal["api_key", "bearer", "encrypted"] = Field("api_key", description="Kind of secret.")
    source: Literal["env", "file"] = Field(description="Where the secret is.")
    env_var: VariableName | None = Field(
        None, min_length=1, description="Variable that holds it (source: env)."
    )
    file_path: str | None = Field(None, min_length=1, description="File that holds it (source: file).")
    file_key: str | None = Field(None, min_length=1, description="Dotted key within a JSON file.")
    key_env: VariableName | None = Field(None, min_length=1, description="Variable with the key (encrypted).")
    key_file: str | None = Field(None, min_length=1, description="File with the key (encrypted).")


class CredentialSpec(Section):
    id: Id = Field(description="Unique among the credentials.")
    provider: str = Field(min_length=1, description="Adapter that receives it.")
    auth: AuthSpec


class CredentialsFile(ManifestFile):
    provider_credentials: tuple[CredentialSpec, ...] = ()
