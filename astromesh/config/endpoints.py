"""Model blocks and entries of providers.yaml, merged; where the key comes from; what the plugin is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from astromesh.config.environment import shown
from astromesh.config.keys import keys_of, takes
from astromesh.config.models import ModelSpec, Price
from astromesh.config.nodes import Node, made
from astromesh.config.providers import ProviderEntry

#: the three ways to a key, of which a block names one
KEYS = ("api_key", "api_key_env", "api_key_file")
#: mappings of which block and entry may each say a part
_UNITED = ("parameters", "prices", "quality")


class PlacedEntry(NamedTuple):
    """An entry of providers.yaml with its node."""

    record: ProviderEntry
    node: Node

    @property
    def typed(self) -> bool:
        """Whether its file says which plugin it is; where it does not, that is told there."""
        return not self.node.stood_in_for(("type",))


class Key(NamedTuple):
    """An API key, empty where there is none; `missing` says why one that was asked for is not there."""

    text: str = ""
    missing: str = ""


def merged(block: Node, entry: PlacedEntry | None, options: type[BaseModel]) -> Node:
    """Both mappings as one; the block wins. What comes from the entry has no place in the block's file.

    Keys that only the entry's provider takes do not reach an embedder of the same name.
    """
    if entry is None:
        return block
    common = keys_of(ProviderEntry)
    base = entry.node.picked(
        k for k in entry.node.entries if k in common or takes(options, str(k))
    ).detached()
    if any(key in block.entries for key in KEYS):
        base = base.picked(key for key in base.entries if key not in KEYS)
    both = block.over(base)
    for key in _UNITED:
        mine, theirs = block.get(key), base.get(key)
        if mine is not None and theirs is not None:
            both = both.replaced((key,), mine.over(theirs))
    return both


def found_key(block: Node, options: type[BaseModel], env: Mapping[str, str], folder: Path) -> Key:
    """The API key of a merged block.

    Args:
        options: the plugin's; they may say which variable usually holds the key of the service itself.
        folder: where a relative `api_key_file` starts.
    """
    written = block.get("api_key")
    if written is not None and written.value is not None:
        return _key(block.text("api_key"), ", ".join(written.variables) or "api_key", "is empty")
    if file := block.text("api_key_file"):
        return _key_in_file(folder / file, file)
    if name := block.text("api_key_env") or _usual_variable(block, options):
        return _key(env.get(name, ""), shown(name, "api_key_env"), "is not set")
    return Key()


def _usual_variable(block: Node, options: type[BaseModel]) -> str:
    """That of the service itself: other endpoints never get its key unasked."""
    own = ("", *getattr(options, "usual_endpoints", ()))
    variable: str = getattr(options, "usual_variable", "")
    return variable if block.text("endpoint").rstrip("/") in own else ""


def _key_in_file(path: Path, named: str) -> Key:
    name = shown(named, "api_key_file", "file")
    where = f"the file {named}" if name == named else name
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # no UTF-8, or a name that no file has
        return Key("", f"{where} cannot be read")
    return _key(text, where, "is empty")


def _key(text: str, where: str, absent: str) -> Key:
    """A key that no header can hold is none: a placeholder that was pasted, two lines for one."""
    key = text.strip()
    if not key:
        return Key("", f"{where} {absent}")
    if not (key.isascii() and key.isprintable()):
        return Key("", f"{where} holds characters that no key has (only printable ASCII fits)")
    return Key(key)


def given(block: Node, options: type[BaseModel], provider: str, model: str, key: Key) -> Node:
    """What the plugin gets of a merged block: its own keys, and the common ones that it declares."""
    common = (*keys_of(ModelSpec), *keys_of(ProviderEntry))
    wanted = keys_of(options)
    taken = [k for k in block.entries if (k in wanted if k in common else True)]
    if key.text:
        taken = [k for k in taken if k not in KEYS]
    added = {"name": provider, "provider": provider, "model": model, "api_key": key.text}
    extra = {k: v for k, v in added.items() if v and k in wanted and k not in block.entries}
    if key.text and "api_key" in wanted:
        extra["api_key"] = key.text
    return block.picked(taken).over(made(extra))


def without_effect(block: Node, options: type[BaseModel]) -> tuple[str, ...]:
    """Keys as written that nobody would read, because the plugin does not take them."""
    only = ("endpoint", "model", "parameters", "timeout", *KEYS)
    reads = any(takes(options, key) for key in KEYS)
    return tuple(
        key
        for key in only
        if key in block.entries and not takes(options, key) and not (key in KEYS and reads)
    )


def rank(spec: ModelSpec, entry: PlacedEntry | None, model: str) -> tuple[Price | None, float | None]:
    """Price and quality of a model; the block's own word counts first."""
    theirs = entry.record if entry else None
    price = spec.prices.get(model) or (theirs.prices.get(model) if theirs else None)
    quality = spec.quality.get(model, theirs.quality.get(model) if theirs else None)
    return price, quality
