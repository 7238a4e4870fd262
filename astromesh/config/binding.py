"""Plugin blocks: each is validated by the plugin's own `Options`, at the place where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from astromesh.config import branching, endpoints
from astromesh.config.agent import (
    AgentManifest,
    AgentModel,
    AgentSpec,
    Conversational,
    Memory,
    Orchestration,
    RoleModel,
    Rule,
)
from astromesh.config.channels import ChannelBlock
from astromesh.config.endpoints import KEYS, PlacedEntry
from astromesh.config.fields import Block
from astromesh.config.keys import did_you_mean, keys_of, listed, takes
from astromesh.config.loader import fault
from astromesh.config.models import ModelBlock, ModelSpec
from astromesh.config.nodes import Node, Steps
from astromesh.config.providers import ProviderEntry
from astromesh.config.rag import RAGSpec
from astromesh.config.seams import OptionsResolver
from astromesh.config.validation import validate
from astromesh.errors import ConfigError, InvalidManifest, UnknownPlugin


class Given(NamedTuple):
    """What binding needs to know.

    Args:
        folder: the configuration's, where relative key files start.
        resolver: the plugins; without them no block is bound.
        entries: providers.yaml by name.
    """

    folder: Path
    env: Mapping[str, str]
    resolver: OptionsResolver | None = None
    entries: Mapping[str, PlacedEntry] = {}


class Binder:
    """Binds the blocks of one file and keeps what is wrong with them.

    Args:
        file, root: the file and its node, for the places of faults.
    """

    def __init__(self, given: Given, file: Path, root: Node) -> None:
        self._given = given
        self._file = file
        self._root = root
        self.faults: list[InvalidManifest] = []
        self.warnings: list[InvalidManifest] = []

    # -- files -----------------------------------------------------------------------------------------------

    def agent(self, manifest: AgentManifest) -> None:
        """Every block of an agent."""
        spec = manifest.spec
        for role, models in spec.model.sets():
            self._models(models, ("spec", "model", "roles", role) if role else ("spec", "model"))
        self._pattern(spec, ("spec", "orchestration"))
        for i, tool in enumerate(spec.tools):
            self._block(tool, "tools", "type", ("spec", "tools", i))
        self._memory(spec.memory, ("spec", "memory"))
        self._rules(spec.guardrails.input, ("spec", "guardrails", "input"))
        self._rules(spec.guardrails.output, ("spec", "guardrails", "output"))

    def pipeline(self, spec: RAGSpec) -> None:
        """Every block of a RAG pipeline."""
        self._block(spec.chunking, "chunkers", "strategy", ("spec", "chunking"))
        self._block(spec.store, "vector_stores", "backend", ("spec", "store"))
        if spec.embeddings is not None:
            self._model(spec.embeddings, ("spec", "embeddings"), "embedders")
        if spec.retrieval.reranker is not None:
            self._models(spec.retrieval.reranker, ("spec", "retrieval", "reranker"))

    def channel(self, name: str, block: ChannelBlock) -> None:
        """A channel, whose plugin has its name."""
        at = ("spec", "channels", name)
        options = self._options("channels", name, at)
        if options is not None:
            known = keys_of(ChannelBlock)
            block.bind(self._validated(options, _own(self._node(at), known, options), at, known))

    def entry(self, name: str, record: ProviderEntry) -> None:
        """An entry of providers.yaml. What only a block says, its model for one, may be missing."""
        at = ("spec", "providers", name)
        node = self._node(at)
        self._check_key(node, at)
        options = self._options("providers", record.type, (*at, "type"))
        if options is None:
            return
        self._refuse_without_effect(node, options, at, record.type)
        checked = validate(
            options,
            endpoints.given(node, options, name, "", endpoints.Key()),
            self._file,
            at,
            keys_of(ProviderEntry),
        )
        self.faults += [found for found in checked.faults if found.message != "is missing"]

    # -- blocks ----------------------------------------------------------------------------------------------

    def _block(self, block: Block, group: str, key: str, at: Steps) -> None:
        """A block whose plugin is named by one of its keys."""
        options = self._options(group, getattr(block, key), (*at, key))
        if options is not None:
            known = keys_of(type(block))
            block.bind(self._validated(options, _own(self._node(at), known, options), at, known))

    def _rules(self, rules: tuple[Rule, ...], at: Steps) -> None:
        for i, rule in enumerate(rules):
            self._block(rule, "guardrails", "type", (*at, i))

    def _pattern(self, spec: AgentSpec, at: Steps) -> None:
        """The pattern's keys stand beside `pattern`, or in a mapping under its name."""
        block = spec.orchestration
        name = block.pattern
        options = self._options("patterns", name, (*at, "pattern"))
        if options is None:
            return
        known = keys_of(Orchestration)
        own = _own(self._node(at), known, options)
        nested = own.get(name)
        if nested is None or name in keys_of(options) or not isinstance(nested.value, dict):
            own = self._branches(spec.model, own, at)
            block.bind(self._validated(options, own, at, known))
            return
        beside = own.picked(key for key in own.entries if key != name)
        for twice in nested.entries.keys() & beside.entries.keys():
            self._fault(f"stands beside 'pattern: {name}' too", (*at, name, twice))
        nested = self._branches(spec.model, nested.over(beside), (*at, name))
        block.bind(self._validated(options, nested, (*at, name), known))

    def _branches(self, models: AgentModel, own: Node, at: Steps) -> Node:
        """A branch's own model becomes a role of the agent; the pattern is told that role."""
        for i, branch in own.children("branches"):
            written = branch.get("model")
            if written is None or not written.value:
                continue
            where: Steps = (*at, "branches", i, "model")
            if branch.get("role") is not None:
                self._fault("stands beside role: a branch has one model", where, "remove one of them")
            node = branching.as_block(written)
            checked = validate(ModelSpec, node, self._file, where)
            self.faults += checked.faults
            if checked.record is None:
                continue
            self._model(checked.record, where, node=node)
            role = branching.role_of(i)
            models.roles[role] = RoleModel(primary=checked.record)
            own = own.replaced(("branches", i), branching.told(branch, role, checked.record))
        return own

    def _memory(self, memory: Memory, at: Steps) -> None:
        if memory.conversational is not None:
            self._conversational(memory.conversational, (*at, "conversational"))
        if memory.semantic is not None:
            self._block(memory.semantic, "semantic_stores", "backend", (*at, "semantic"))
            if memory.semantic.embeddings is not None:
                self._model(memory.semantic.embeddings, (*at, "semantic", "embeddings"), "embedders")
        if memory.episodic is not None:
            self._block(memory.episodic, "episodic_stores", "backend", (*at, "episodic"))

    def _conversational(self, block: Conversational, at: Steps) -> None:
        """Two plugins in one block: each key goes to the one that declares it."""
        store = self._options("conversation_stores", block.backend, (*at, "backend"))
        strategy = self._options("memory_strategies", block.strategy, (*at, "strategy"))
        if store is None or strategy is None:
            return
        node, known = self._node(at), keys_of(Conversational)
        everything = (*known, *keys_of(store), *keys_of(strategy))
        for key in node.entries:
            if key not in known and not takes(store, str(key)) and not takes(strategy, str(key)):
                self._unknown((*at, key), everything)
        block.bind(self._validated(store, _taken(node, known, store), at))
        block.bind_strategy(self._validated(strategy, _taken(node, known, strategy), at))

    # -- models ----------------------------------------------------------------------------------------------

    def _models(self, models: RoleModel, at: Steps) -> None:
        self._model(models.primary, (*at, "primary"))
        if isinstance(models.fallback, ModelSpec):
            self._model(models.fallback, (*at, "fallback"))
            return
        for i, block in enumerate(models.fallback):
            self._model(block, (*at, "fallback", i))

    def _model(self, spec: ModelSpec, at: Steps, group: str = "providers", node: Node | None = None) -> None:
        """A model block, with what providers.yaml says about its provider.

        Args:
            node: the block's, where it does not stand in the file as one.
        """
        entry = self._given.entries.get(spec.provider)
        if entry is not None and not entry.typed:
            return
        plugin = entry.record.type if entry else spec.provider
        node = node or self._node(at)
        self._check_key(node, at)
        options = self._options(group, plugin, (*at, "provider"), also=self._given.entries)
        if options is None:
            return
        self._refuse_without_effect(node, options, at, plugin)
        model = self._chosen(spec, entry, at) if group == "providers" else spec.model
        both = endpoints.merged(node, entry, options)
        key = endpoints.found_key(both, options, self._given.env, self._given.folder)
        given = endpoints.given(both, options, spec.provider, model, key)
        validated = self._validated(options, given, at, keys_of(ModelSpec))
        if key.missing:
            self._warn(f"is skipped: {key.missing}", at)
        if validated is not None:
            price, quality = endpoints.rank(spec, entry, model)
            spec.resolve(ModelBlock(spec.provider, plugin, model, validated, price, quality, key.missing))

    def _chosen(self, spec: ModelSpec, entry: PlacedEntry | None, at: Steps) -> str:
        models = entry.record.models if entry else ()
        if spec.model and models and spec.model not in models:
            hint = did_you_mean(spec.model, models) or f"there: {', '.join(models)}"
            self._warn("is not among the models of providers.yaml", (*at, "model"), hint)
        return spec.model or (models[0] if models else "")

    def _check_key(self, node: Node, at: Steps) -> None:
        named = [key for key in KEYS if key in node.entries]
        for more in named[1:]:
            self._fault(f"stands beside {named[0]}: a key comes from one place", (*at, more))
        literal = node.get("api_key")
        if literal is not None and not literal.variables:
            self._warn("a key stands in the file", (*at, "api_key"), "better: api_key_env or api_key_file")

    def _refuse_without_effect(self, node: Node, options: type[BaseModel], at: Steps, plugin: str) -> None:
        for key in endpoints.without_effect(node, options):
            self._fault(f"has no effect: {plugin!r} does not take it", (*at, key), "remove it")

    # -- what they share -------------------------------------------------------------------------------------

    def _node(self, at: Steps) -> Node:
        return self._root.get(*at) or Node({}, self._root.place_of(at))

    def _options(self, group: str, name: str, at: Steps, also: Iterable[str] = ()) -> type[BaseModel] | None:
        resolver = self._given.resolver
        if resolver is None or self._root.stood_in_for(at):
            return None
        try:
            return resolver.options(group, name)
        except UnknownPlugin:
            known = sorted({*resolver.names(group), *also})
            hint = did_you_mean(name, known) or listed(known)
            self._fault(f"there is no {_SINGULAR[group]} {name!r}", at, hint)
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
        hint = did_you_mean(str(at[-1]), known) or listed(known)
        self._fault("is no known key", at, hint, key=True)

    def _fault(self, message: str, at: Steps, hint: str = "", *, key: bool = False) -> None:
        self.faults.append(fault(self._file, message, self._root.place_of(at, key=key), at, hint))

    def _warn(self, message: str, at: Steps, hint: str = "") -> None:
        self.warnings.append(fault(self._file, message, self._root.place_of(at), at, hint))


#: what one plugin of a group is called in a sentence
_SINGULAR = {
    "providers": "provider",
    "conversation_stores": "conversation store",
    "semantic_stores": "semantic store",
    "episodic_stores": "episodic store",
    "memory_strategies": "memory strategy",
    "tools": "tool type",
    "guardrails": "guardrail",
    "patterns": "pattern",
    "embedders": "embedder",
    "vector_stores": "vector store",
    "chunkers": "chunker",
    "channels": "channel",
}


def _own(node: Node, known: Iterable[str], options: type[BaseModel]) -> Node:
    """The keys that are the plugin's: those that the block does not declare, and those that both declare."""
    declared, wanted = set(known), set(keys_of(options))
    return node.picked(key for key in node.entries if key not in declared or key in wanted)


def _taken(node: Node, known: Iterable[str], options: type[BaseModel]) -> Node:
    """Of a block of two plugins, the keys that this one takes."""
    declared = set(known)
    return node.picked(key for key in node.entries if key not in declared and takes(options, str(key)))
