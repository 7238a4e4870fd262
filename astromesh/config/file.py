"""One configuration file: from text to record, its plugin blocks bound, with all of its faults.

Each plugin block is validated with the plugin's own `Options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from astromesh.config import providers
from astromesh.config.agent import (
    AgentManifest,
    AgentModel,
    Conversational,
    GraphManifest,
    Orchestration,
    RoleModel,
    ToolBlock,
)
from astromesh.config.base import Node, OptionsResolver, Place, Steps, node_from_value
from astromesh.config.checks import Finding
from astromesh.config.parser import NUMBER_FAULTS, manifest_fault, read_file
from astromesh.config.providers import (
    KEY_SOURCES,
    ModelBlock,
    ModelSpec,
    ProviderEntry,
    ProviderEntryNode,
    ProviderManifest,
)
from astromesh.config.rag import RAGManifest
from astromesh.config.records import Block, Manifest, records_in
from astromesh.config.runtime import ChannelBlock, ChannelManifest, MCPManifest, RuntimeManifest
from astromesh.config.validation import MISSING, accepts_key, keys_of, salvage, suggest_name, validate
from astromesh.errors import ConfigError, InvalidManifest, UnknownPlugin


class BindingContext(NamedTuple):
    """What binding depends on.

    Args:
        folder: the configuration's, where relative key files start.
        resolver: the plugins; without them no block is bound.
        entries: providers.yaml by name.
    """

    folder: Path
    env: Mapping[str, str]
    resolver: OptionsResolver | None = None
    entries: Mapping[str, ProviderEntryNode] = {}


class Binder:
    """Binds the blocks of one file and collects their faults.

    Args:
        file, root: the file and its node, for the places of faults.
    """

    def __init__(self, context: BindingContext, file: Path, root: Node) -> None:
        self._context = context
        self._file = file
        self._root = root
        self.faults: list[InvalidManifest] = []
        self.warnings: list[InvalidManifest] = []

    def bind(self, record: BaseModel) -> None:
        """Binds every block of a file's `spec`."""
        for at, one in records_in(record, ("spec",)):
            match one:
                case ModelSpec():
                    self._model(one, at)
                case ProviderEntry():
                    self._entry(str(at[-1]), one, at)
                case Orchestration():
                    self._pattern(one, getattr(record, "model", None), at)
                case Conversational():
                    self._conversational(one, at)
                case ChannelBlock():
                    self._bind_to(one, "channels", str(at[-1]), at)
                case ToolBlock():
                    self._bind_to(one, "tools", one.type, at, (*at, "type"))
                    self._take_declared_keys(one, at)
                case Block():
                    for key, group in one.plugin_keys().items():
                        self._bind_to(one, group, getattr(one, key), at, (*at, key))

    # -- blocks ----------------------------------------------------------------------------------------------

    def _bind_to(self, block: Block, group: str, name: str, at: Steps, named_at: Steps = ()) -> None:
        """Binds a block to a plugin.

        Args:
            named_at: where the file names the plugin, if not at the block itself.
        """
        options = self._options(group, name, named_at or at)
        if options is not None:
            known = keys_of(type(block))
            block.bind(self._validated(options, _plugin_keys(self._node(at), known, options), at, known))

    def _take_declared_keys(self, block: ToolBlock, at: Steps) -> None:
        """Sets the keys that a block omits and `@tool(…)` has at its function."""
        declared = getattr(block.options, "declared_keys", {})
        values = {key: value for key, value in declared.items() if key not in block.model_fields_set}
        try:
            made = ToolBlock.model_validate({"name": block.name, "type": block.type, **values})
        except ValidationError as error:
            wrong = error.errors()[0]
            key = ".".join(map(str, wrong["loc"]))
            self._fault(f"names a function whose `@tool` has an invalid `{key}`: {wrong['msg']}", at)
            return
        for key in values:
            object.__setattr__(block, key, getattr(made, key))

    def _entry(self, name: str, record: ProviderEntry, at: Steps) -> None:
        """Checks an entry of providers.yaml.

        Keys that only model blocks have, such as the model, may be missing.
        """
        node = self._node(at)
        self._check_key(node, at)
        options = self._options("providers", record.type, (*at, "type"))
        if options is None:
            return
        self._reject_ignored_keys(node, options, at, record.type)
        values = providers.plugin_options(node, options, name, "", providers.ApiKey())
        checked = validate(options, values, self._file, at, keys_of(ProviderEntry))
        self.faults += [found for found in checked.faults if found.message != MISSING]

    def _pattern(self, block: Orchestration, models: AgentModel | None, at: Steps) -> None:
        """Binds the pattern's keys, which are beside `pattern` or in a mapping with the pattern's name."""
        name = block.pattern
        options = self._options("patterns", name, (*at, "pattern"))
        if options is None:
            return
        known = keys_of(Orchestration)
        own = _plugin_keys(self._node(at), known, options)
        nested = own.get(name)
        if nested is None or name in keys_of(options) or not isinstance(nested.value, dict):
            own = self._branches(models, own, at)
            block.bind(self._validated(options, own, at, known))
            return
        beside = own.select(key for key in own.entries if key != name)
        for twice in nested.entries.keys() & beside.entries.keys():
            self._fault(f"is also set beside `pattern: {name}`", (*at, name, twice), "Remove one of them.")
        nested = self._branches(models, nested.merged_over(beside), (*at, name))
        block.bind(self._validated(options, nested, (*at, name), known))

    def _branches(self, models: AgentModel | None, own: Node, at: Steps) -> Node:
        """Makes the model of a branch a role of the agent and passes that role to the pattern."""
        for i, branch in own.children("branches"):
            written = branch.get("model")
            if written is None or not written.value:
                continue
            where: Steps = (*at, "branches", i, "model")
            if branch.get("role") is not None:
                self._fault("conflicts with `role`; a branch has one model", where, "Remove one of them.")
            node = providers.branch_model_block(written)
            checked = validate(ModelSpec, node, self._file, where)
            self.faults += checked.faults
            if checked.record is None:
                continue
            self._model(checked.record, where, node=node)
            role = providers.branch_role(i)
            if models is not None:
                models.roles[role] = RoleModel(primary=checked.record)
            own = own.with_replaced(("branches", i), providers.branch_with_role(branch, role, checked.record))
        return own

    def _conversational(self, block: Conversational, at: Steps) -> None:
        """Binds a block of two plugins; each key goes to the plugin that declares it."""
        store = self._options("conversation_stores", block.backend, (*at, "backend"))
        strategy = self._options("memory_strategies", block.strategy, (*at, "strategy"))
        if store is None or strategy is None:
            return
        node, known = self._node(at), keys_of(Conversational)
        everything = (*known, *keys_of(store), *keys_of(strategy))
        for key in node.entries:
            if key not in known and not accepts_key(store, str(key)) and not accepts_key(strategy, str(key)):
                self._unknown((*at, key), everything)
        block.bind(self._validated(store, _keys_taken_by(node, known, store), at))
        block.bind_strategy(self._validated(strategy, _keys_taken_by(node, known, strategy), at))

    # -- models ----------------------------------------------------------------------------------------------

    def _model(self, spec: ModelSpec, at: Steps, node: Node | None = None) -> None:
        """Binds a model block, merged with its provider's entry in providers.yaml.

        Args:
            node: of the block, where it is not a mapping in the file.
        """
        entry, group = self._context.entries.get(spec.provider), spec.plugin_keys()["provider"]
        if entry is not None and not entry.has_type:
            return
        plugin = entry.record.type if entry else spec.provider
        node = node or self._node(at)
        self._check_key(node, at)
        options = self._options(group, plugin, (*at, "provider"), also=self._context.entries)
        if options is None:
            return
        self._reject_ignored_keys(node, options, at, plugin)
        model = self._model_name(spec, entry, at) if group == "providers" else spec.model
        both = providers.merge_entry(node, entry, options)
        key = providers.find_key(both, options, self._context.env, self._context.folder)
        values = providers.plugin_options(both, options, spec.provider, model, key)
        validated = self._validated(options, values, at, keys_of(ModelSpec))
        if key.missing:
            self._warn(f"is skipped: {key.missing}", at)
        if validated is not None:
            price, quality = providers.price_and_quality(spec, entry, model)
            spec.resolve(ModelBlock(spec.provider, plugin, model, validated, price, quality, key.missing))

    def _model_name(self, spec: ModelSpec, entry: ProviderEntryNode | None, at: Steps) -> str:
        models = entry.record.models if entry else ()
        if spec.model and models and spec.model not in models:
            hint = suggest_name(spec.model, models)
            self._warn(f"unknown model `{spec.model}`; it is not in providers.yaml", (*at, "model"), hint)
        return spec.model or (models[0] if models else "")

    def _check_key(self, node: Node, at: Steps) -> None:
        named = [key for key in KEY_SOURCES if key in node.entries]
        for more in named[1:]:
            self._fault(f"conflicts with `{named[0]}`", (*at, more), "Remove one of them.")
        literal = node.get("api_key")
        if literal is not None and not literal.variables:
            self._warn("contains a key as plain text", (*at, "api_key"), "Use api_key_env or api_key_file.")

    def _reject_ignored_keys(self, node: Node, options: type[BaseModel], at: Steps, plugin: str) -> None:
        for key in providers.ignored_keys(node, options):
            self._fault(f"has no effect, because `{plugin}` does not accept it", (*at, key), "Remove it.")

    # -- shared ----------------------------------------------------------------------------------------------

    def _node(self, at: Steps) -> Node:
        return self._root.get(*at) or Node({}, self._root.place_of(at))

    def _options(self, group: str, name: str, at: Steps, also: Iterable[str] = ()) -> type[BaseModel] | None:
        resolver = self._context.resolver
        if resolver is None or self._root.has_placeholder(at):
            return None
        try:
            return resolver.options(group, name)
        except UnknownPlugin:
            known = sorted({*resolver.names(group), *also})
            hint = suggest_name(name, known)
            self._fault(f"unknown {_noun(group)} `{name}`", at, hint)
        except ConfigError as error:
            self._fault(str(error), at)
        return None

    def _validated(
        self, options: type[BaseModel], node: Node, at: Steps, known: Iterable[str] = ()
    ) -> BaseModel | None:
        known = tuple(known)
        checked = validate(options, node, self._file, at, known)
        self.faults += checked.faults
        if options.model_config.get("extra", "ignore") == "ignore":
            for key in node.entries.keys() - set(keys_of(options)):
                self._unknown((*at, key), (*known, *keys_of(options)))
        record: BaseModel | None = checked.record
        return record

    def _unknown(self, at: Steps, known: Iterable[str]) -> None:
        hint = suggest_name(str(at[-1]), known)
        self._fault(f"unknown key `{at[-1]}`", at, hint, key=True)

    def _fault(self, message: str, at: Steps, hint: str = "", *, key: bool = False) -> None:
        self.faults.append(manifest_fault(self._file, message, self._root.place_of(at, key=key), at, hint))

    def _warn(self, message: str, at: Steps, hint: str = "") -> None:
        self.warnings.append(manifest_fault(self._file, message, self._root.place_of(at), at, hint))


def _noun(group: str) -> str:
    """Returns the noun for a plugin of a group: `conversation store` for `conversation_stores`."""
    if group == "tools":
        return "tool type"
    words = group.replace("_", " ")
    return f"{words[:-3]}y" if words.endswith("ies") else words[:-1]


def _plugin_keys(node: Node, known: Iterable[str], options: type[BaseModel]) -> Node:
    """Returns the keys of the plugin: those that the block does not declare, and those that both declare."""
    declared, option_keys = set(known), set(keys_of(options))
    return node.select(key for key in node.entries if key not in declared or key in option_keys)


def _keys_taken_by(node: Node, known: Iterable[str], options: type[BaseModel]) -> Node:
    """Returns the keys of a block of two plugins that this plugin accepts."""
    declared = set(known)
    return node.select(key for key in node.entries if key not in declared and accepts_key(options, str(key)))


#: kind → its record
KINDS: Mapping[str, type[Manifest]] = {
    "Agent": AgentManifest,
    "ProviderConfig": ProviderManifest,
    "ChannelConfig": ChannelManifest,
    "RAGPipeline": RAGManifest,
    "MCPConfig": MCPManifest,
    "RuntimeConfig": RuntimeManifest,
    "Graph": GraphManifest,
}


class ConfigFile:
    """A file, its record and its faults.

    Args:
        kind: what it must be.
        path: where it is.
        root: its content; only the head where the file does not exist.
    """

    def __init__(self, kind: str, path: Path, root: Node, faults: Iterable[InvalidManifest] = ()) -> None:
        self.kind = kind
        self.path = path
        #: as written; `sound` is the valid part, from which the record was created
        self.root = self.sound = root
        self.faults: list[InvalidManifest] = list(faults)
        self.warnings: list[InvalidManifest] = []
        #: the record; after faults that of the valid part, in which further checks find more faults
        self.manifest: Any = None

    @classmethod
    def read(cls, kind: str, path: Path, env: Mapping[str, str]) -> ConfigFile:
        """Reads a file."""
        document = read_file(path, env)
        return cls(kind, path, document.node or Node({}, Place(1, 1)), document.faults)

    @classmethod
    def absent(cls, kind: str, path: Path) -> ConfigFile:
        """Creates a file that does not exist and need not."""
        return cls(kind, path, node_from_value({"apiVersion": "astromesh/v1", "kind": kind}))

    @property
    def name(self) -> str:
        """metadata.name, else the first part of the file's own name."""
        return self.root.text("metadata", "name") or self.path.name.split(".")[0]

    def validate(self, defaults: Callable[[Node], Node] = lambda root: root) -> None:
        """Creates the record, or adds the faults."""
        if not self.root.entries and self.faults:
            return
        if not isinstance(self.root.value, dict):
            self.add_findings([Finding((), "must be a mapping with apiVersion, kind, metadata and spec")])
            return
        salvaged = salvage(KINDS[self.kind], defaults(self.root), self.path, placeholders=True)
        # the parser has reported these numbers already
        known_places = {
            (one.line, one.column) for one in self.faults if one.message in NUMBER_FAULTS.values()
        }
        self.faults += (one for one in salvaged.faults if (one.line, one.column) not in known_places)
        if salvaged.record is not None:
            salvaged.record.read_from(self.path)
            self.manifest, self.sound = salvaged.record, salvaged.node

    def check(self, findings: Callable[[Any, Node], Iterable[Finding]]) -> None:
        """Checks the record for more faults."""
        if self.manifest is not None:
            self.add_findings(findings(self.manifest, self.sound))

    def bind(self, context: BindingContext) -> None:
        """Binds the record's plugin blocks."""
        if self.manifest is None:
            return
        binder = Binder(context, self.path, self.sound)
        binder.bind(self.manifest.spec)
        self.faults += binder.faults
        self.warnings += binder.warnings

    def warn(self, findings: Callable[[Any, Node], Iterable[Finding]]) -> None:
        """Checks the record for more warnings."""
        if self.manifest is not None:
            self.warnings += self._placed(findings(self.manifest, self.sound))

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Turns findings into faults at their places."""
        self.faults += self._placed(findings)

    def _placed(self, findings: Iterable[Finding]) -> Iterator[InvalidManifest]:
        for finding in findings:
            if self.sound.has_placeholder(finding.steps):
                continue
            place = finding.place or self.sound.place_of(finding.steps)
            yield manifest_fault(self.path, finding.message, place, finding.steps, finding.hint)

    def location(self, steps: Steps) -> str:
        """Returns the place of a path as `FILE:LINE:COLUMN`."""
        place = self.root.place_of(steps)
        return f"{self.path}:{place.line}:{place.column}"

    def sorted_faults(self) -> tuple[InvalidManifest, ...]:
        """Returns the faults in the order of lines, each once."""
        unique = {str(found): found for found in self.faults}
        return tuple(sorted(unique.values(), key=lambda found: (found.line, found.column)))


def with_defaults(root: Node, at: Steps, values: Mapping[str, Any]) -> Node:
    """Returns the document with defaults for missing values; unchanged where it is not a mapping."""
    if not isinstance(root.value, dict):
        return root
    if not at:
        return root.merged_over(
            node_from_value({key: value for key, value in values.items() if value is not None})
        )
    below = root.entries.get(at[0], node_from_value({}))
    changed = with_defaults(below, at[1:], values)
    return root if changed is below else root.with_entry(str(at[0]), changed)
