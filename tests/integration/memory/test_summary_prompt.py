"""The summary of a session on its way to the model."""

from __future__ import annotations

from astromesh.memory.base import Summary
from astromesh.testing import ScriptedProvider
from astromesh.types import SessionKey, Turn
from tests.integration.agents_folder import manifest, runtime_of, write


async def test_a_summary_is_part_of_the_one_system_message(tmp_path):
    """Strict chat templates take one system message, at the start; the turns behind the summary follow it."""
    memory = {"conversational": {"backend": "in_memory", "strategy": "summary", "keep_turns": 2}}
    write(tmp_path, manifest(memory=memory))
    async with runtime_of(tmp_path, provider := ScriptedProvider("Size 43.")) as runtime:
        store, key = (
            runtime.agent("helper").memory.conversations,
            SessionKey("default", "helper", "s-1", "anonymous"),
        )
        turns = [Turn(role, f"{role} {n}") for n in range(3) for role in ("user", "assistant")]
        assert store is not None
        await store.append(key, "anonymous", turns)
        await store.set_summary(key, Summary("They spoke of shoes.", 4))
        await runtime.run("helper", "Which size?", "s-1")
    system, *others = provider.requests[0].messages
    assert system.content.startswith("You are helper. Helps.")
    assert system.content.endswith("They spoke of shoes.")
    assert [(m.role, m.content) for m in others] == [
        ("user", "user 2"), ("assistant", "assistant 2"), ("user", "Which size?"),
    ]  # fmt: skip
