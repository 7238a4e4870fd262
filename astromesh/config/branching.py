"""Branches of `parallel_fan_out` with their own model: `model: {provider, model}` or `PROVIDER/MODEL`."""

from __future__ import annotations

from astromesh.config.models import ModelSpec
from astromesh.config.nodes import Node, made


def as_block(written: Node) -> Node:
    """A model block: the one that stands there, or that of a name as metrics and errors show it."""
    if not isinstance(written.value, str):
        return written
    provider, _, model = written.value.partition("/")
    block = made({"provider": provider, "model": model} if model else {"provider": provider})
    for part in (block, *block.entries.values()):
        part.place = written.place
    return block


def role_of(branch: int | str) -> str:
    """The role that stands for a branch's model; no role that a user writes needs brackets."""
    return f"branches[{branch}]"


def told(branch: Node, role: str, model: ModelSpec) -> Node:
    """What the pattern is told of the branch: the role to ask by, and the model's name to call it by."""
    name = f"{model.provider}/{model.model}" if model.model else model.provider
    return branch.with_entry("model", made(name)).with_entry("role", made(role))
