"""JSON Schemas of the files (draft 2020-12), for editors and for `astromesh schema KIND`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from pydantic import BaseModel

from astromesh.config.base import OptionsResolver, node_from_value
from astromesh.config.file import KINDS
from astromesh.config.folder import FILE_FOLDERS, SINGLE_FILES
from astromesh.config.providers import Endpoint, ModelSpec, ignored_keys
from astromesh.config.records import Block, JsonMap, subclasses_of
from astromesh.errors import MissingExtra

_STEMS = {kind: file.removesuffix(".yaml") for file, kind in SINGLE_FILES.items()}
_STEMS |= {kind: suffix.split(".")[1] for suffix, kind, _ in FILE_FOLDERS.values()}
#: kind → name of its file in `config/schemas/`
SCHEMA_FILES: Mapping[str, str] = {kind: _STEMS[kind] for kind in KINDS}
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: str, resolver: OptionsResolver) -> JsonMap:
    """Returns the JSON Schema of a kind, with the options of every installed plugin.

    Args:
        kind: `Agent`, `ProviderConfig` … (`KINDS`).
        resolver: the plugins.
    """
    whole = KINDS[kind].model_json_schema()
    definitions: JsonMap = whole.setdefault("$defs", {})
    for block in subclasses_of(Block):
        if block.plugin_keys() and block.__name__ in definitions:
            definitions[block.__name__] = _block_schema(block, definitions, resolver)
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


def _block_schema(block: type[Block], definitions: JsonMap, resolver: OptionsResolver) -> JsonMap:
    """Returns a block as one form for each plugin, or each pair of plugins, that it may name."""
    own = definitions[block.__name__]
    names = [resolver.names(group) for group in block.plugin_keys().values()]
    forms = []
    for chosen in product(*names):
        form = _PluginForm(block, own)
        for (key, group), name in zip(block.plugin_keys().items(), chosen, strict=True):
            form.add(key, group, name, definitions, resolver)
        forms.append(form.schema)
    if forms and issubclass(block, ModelSpec):
        forms.append(_free_form(own, "provider", names[0]))
    return {**{key: own[key] for key in ("title", "description")}, "oneOf": forms} if forms else own


class _PluginForm:
    """A block's own keys and those of its plugins, and no others."""

    def __init__(self, block: type[Block], own: JsonMap) -> None:
        self._block = block
        self._own = own
        self.schema: JsonMap = {
            "title": "",
            "type": "object",
            "properties": dict(own["properties"]),
            "required": list(own.get("required", ())),
            "additionalProperties": False,
        }

    def add(self, key: str, group: str, name: str, definitions: JsonMap, resolver: OptionsResolver) -> None:
        """Adds the keys of the plugin that a key of the block names."""
        self._name(key, name)
        try:
            options = resolver.options(group, name)
        except MissingExtra:
            self.schema["additionalProperties"] = True
            return
        theirs = _options_schema(options, f"{group}.{name}", definitions)
        if theirs.get("additionalProperties", True) is not False:
            self.schema["additionalProperties"] = True
        properties = self.schema["properties"]
        foreign = {
            own: value for own, value in theirs["properties"].items() if own not in self._own["properties"]
        }
        if issubclass(self._block, Endpoint):
            for ignored in ignored_keys(node_from_value(dict.fromkeys(properties)), options):
                del properties[ignored]
        elif key == "pattern":
            nested = {"type": "object", "properties": foreign, "additionalProperties": False}
            properties.setdefault(name, foreign.get(name, nested))
        else:
            self.schema["required"] += [own for own in theirs.get("required", ()) if own in foreign]
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
