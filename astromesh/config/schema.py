"""JSON Schemas of the files (draft 2020-12), for editors and for `astromesh schema KIND`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, NamedTuple

from pydantic import BaseModel

from astromesh.config import agent, providers, rag
from astromesh.config.base import OptionsResolver, node_from_value
from astromesh.config.endpoints import ignored_keys
from astromesh.config.file import KINDS
from astromesh.config.records import JsonMap
from astromesh.errors import MissingExtra

#: kind → name of its file in `config/schemas/`
SCHEMA_FILES: Mapping[str, str] = {
    "Agent": "agent",
    "ProviderConfig": "providers",
    "ChannelConfig": "channels",
    "RAGPipeline": "rag",
    "MCPConfig": "mcp",
    "RuntimeConfig": "runtime",
    "Graph": "graph",
}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _PluginKey(NamedTuple):
    """The key of a block that names a plugin of a group; `free` where other names are valid, too."""

    key: str
    group: str
    free: bool = False


#: block → the keys that name its plugins
_BLOCKS: Mapping[type[BaseModel], tuple[_PluginKey, ...]] = {
    providers.ModelSpec: (_PluginKey("provider", "providers", free=True),),
    providers.Embeddings: (_PluginKey("provider", "embedders", free=True),),
    providers.ProviderEntry: (_PluginKey("type", "providers"),),
    agent.Orchestration: (_PluginKey("pattern", "patterns"),),
    agent.ToolBlock: (_PluginKey("type", "tools"),),
    agent.Conversational: (
        _PluginKey("backend", "conversation_stores"),
        _PluginKey("strategy", "memory_strategies"),
    ),
    agent.Semantic: (_PluginKey("backend", "semantic_stores"),),
    agent.Episodic: (_PluginKey("backend", "episodic_stores"),),
    agent.GuardrailRule: (_PluginKey("type", "guardrails"),),
    rag.Chunking: (_PluginKey("strategy", "chunkers"),),
    rag.VectorStore: (_PluginKey("backend", "vector_stores"),),
}


def schema(kind: str, resolver: OptionsResolver) -> JsonMap:
    """Returns the JSON Schema of a kind, with the options of every installed plugin.

    Args:
        kind: `Agent`, `ProviderConfig` … (`KINDS`).
        resolver: the plugins.
    """
    whole = KINDS[kind].model_json_schema()
    definitions: JsonMap = whole.setdefault("$defs", {})
    for block, namings in _BLOCKS.items():
        if block.__name__ in definitions:
            definitions[block.__name__] = _block_schema(block, namings, definitions, resolver)
    if kind == "ChannelConfig":
        of = definitions["ChannelSpec"]["properties"]
        of["channels"] = _channels(of["channels"], definitions, resolver)
    _allow_variables(whole)
    return {"$schema": _DIALECT, **whole}


def _channels(described: JsonMap, definitions: JsonMap, resolver: OptionsResolver) -> JsonMap:
    """Returns the channels by their names, each with its plugin's keys."""
    own = definitions.pop("ChannelBlock")
    named = {}
    for name in resolver.names("channels"):
        theirs = _options_schema(resolver.options("channels", name), f"channels.{name}", definitions)
        named[name] = {
            "title": name,
            "description": theirs.get("description", own["description"]),
            "type": "object",
            "properties": {**theirs["properties"], **own["properties"]},
            "required": [*theirs.get("required", ()), *own["required"]],
            "additionalProperties": False,
        }
    head: JsonMap = {k: described[k] for k in ("title", "description", "default", "type") if k in described}
    return {**head, "properties": named, "additionalProperties": False}


def _block_schema(
    block: type[BaseModel], namings: tuple[_PluginKey, ...], definitions: JsonMap, resolver: OptionsResolver
) -> JsonMap:
    """Returns a block as one form for each plugin, or each pair of plugins, that it may name."""
    own = definitions[block.__name__]
    names = [resolver.names(naming.group) for naming in namings]
    forms = []
    for chosen in product(*names):
        form = _PluginForm(block, own)
        for naming, name in zip(namings, chosen, strict=True):
            form.add(naming, name, definitions, resolver)
        forms.append(form.schema)
    if forms and namings[0].free:
        forms.append(_free_form(own, namings[0].key, names[0]))
    return {**{key: own[key] for key in ("title", "description")}, "oneOf": forms} if forms else own


class _PluginForm:
    """A block's own keys and those of its plugins, and no others."""

    def __init__(self, block: type[BaseModel], own: JsonMap) -> None:
        self._block = block
        self._own = own
        self.schema: JsonMap = {
            "title": "",
            "type": "object",
            "properties": dict(own["properties"]),
            "required": list(own.get("required", ())),
            "additionalProperties": False,
        }

    def add(self, naming: _PluginKey, name: str, definitions: JsonMap, resolver: OptionsResolver) -> None:
        """Adds the keys of one plugin."""
        self._name(naming.key, name)
        try:
            options = resolver.options(naming.group, name)
        except MissingExtra:
            self.schema["additionalProperties"] = True
            return
        theirs = _options_schema(options, f"{naming.group}.{name}", definitions)
        if theirs.get("additionalProperties", True) is not False:
            self.schema["additionalProperties"] = True
        properties = self.schema["properties"]
        foreign = {
            key: value for key, value in theirs["properties"].items() if key not in self._own["properties"]
        }
        if issubclass(self._block, providers.Endpoint):
            for key in ignored_keys(node_from_value(dict.fromkeys(properties)), options):
                del properties[key]
        elif naming.key == "pattern":
            nested = {"type": "object", "properties": foreign, "additionalProperties": False}
            properties.setdefault(name, foreign.get(name, nested))
        else:
            self.schema["required"] += [key for key in theirs.get("required", ()) if key in foreign]
        properties.update(foreign)

    def _name(self, key: str, name: str) -> None:
        described = self._own["properties"][key]
        self.schema["title"] = " ".join(filter(None, (self.schema["title"], name)))
        self.schema["properties"][key] = {"const": name, "description": described["description"]}
        required = self.schema["required"]
        if key not in required and described.get("default") != name:
            required.append(key)


def _options_schema(options: type[BaseModel], prefix: str, definitions: JsonMap) -> JsonMap:
    """Returns the schema of a plugin's `Options` and moves its definitions to the common ones."""
    found = options.model_json_schema(ref_template=f"#/$defs/{prefix}.{{model}}")
    definitions.update({f"{prefix}.{name}": value for name, value in found.pop("$defs", {}).items()})
    return {"properties": {}, **found}


def _free_form(own: JsonMap, key: str, names: Iterable[str]) -> JsonMap:
    """Returns the form of a block that names an entry of providers.yaml instead of a plugin."""
    other = {"type": "string", "minLength": 1, "not": {"enum": list(names)}}
    described = {**other, "description": own["properties"][key]["description"]}
    return {**own, "title": "an entry of providers.yaml", "properties": {**own["properties"], key: described}}


def _allow_variables(found: Any) -> None:
    """Allows the text `${VAR}` wherever a number or a boolean is expected."""
    if isinstance(found, list):
        for item in found:
            _allow_variables(item)
    elif isinstance(found, dict):
        if found.get("type") in ("integer", "number", "boolean"):
            found["type"] = [found["type"], "string"]
            found["pattern"] = r"\$\{"
        for key, item in found.items():
            if key not in ("default", "const", "enum", "required"):
                _allow_variables(item)
