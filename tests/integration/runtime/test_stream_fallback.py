"""A streamed answer that breaks off while all of it is held back was not heard: another model answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from astromesh.errors import ProviderUnavailable
from astromesh.plugins import Plugins
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import Reply, ScriptedProvider, plugin_of
from astromesh.types import Usage, attach_usage
from tests.integration.agents_folder import client_of, manifest, write

BLOCKED = {"output": [{"type": "content_filter", "forbidden_keywords": ["abcdefghijkl"], "action": "redact"}]}
WAITS = "abcdefghij"  # what the rule's window still holds back
ANSWER = "One. Two."


class Told(NamedTuple):
    """What a listener heard, and how the run ended."""

    said: str
    kind: str
    data: dict[str, Any]


def cut(*chunks: str, cost: Usage | None = None) -> Reply:
    error = ProviderUnavailable("cut")
    if cost is not None:
        attach_usage(error, cost)
    return Reply(chunks=chunks, error=error)


async def told(folder: Path, first: Sequence[Any], second: Sequence[Any] = (), **spec: Any) -> Told:
    """The run of an agent whose models say this, heard as server-sent events."""
    models = {
        name: ScriptedProvider(*lines, name=f"{name}/m") for name, lines in (("a", first), ("b", second))
    }
    blocks = {"primary": {"provider": "a", "model": "m"}}
    if second:
        blocks["fallback"] = {"provider": "b", "model": "m"}
    plugins = Plugins({"providers": {name: plugin_of(model) for name, model in models.items()}})
    write(folder, manifest(model=blocks, **spec))
    runtime = AgentRuntime(folder, data_dir=folder / "data", plugins=plugins, env={})
    async with client_of(runtime) as client:
        answer = await client.post(
            "/v1/agents/helper/run",
            json={"query": "go", "session_id": "s"},
            headers={"accept": "text/event-stream"},
        )
    events = [
        dict(line.split(": ", 1) for line in text.splitlines()) for text in answer.text.strip().split("\n\n")
    ]
    read = [(event["event"], json.loads(event["data"])) for event in events]
    assert [kind for kind, _ in read].count("model.started") == 1
    said = "".join(data["content"] for kind, data in read if kind == "model.delta")
    return Told(said, *read[-1])


HELD: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a sentence": ({"stream": "sentence"}, ("Not yet", " a sentence")),
    "a rule's window": ({"guardrails": BLOCKED}, (WAITS[:3], WAITS[3:])),
    "both": ({"guardrails": BLOCKED, "stream": "sentence"}, ("Not", " yet")),
}


@pytest.mark.parametrize("name", HELD)
async def test_another_model_answers_and_nothing_of_the_first_is_heard(tmp_path, name):
    spec, chunks = HELD[name]
    spent = Usage(20, 3, 0, 0.5)
    heard = await told(
        tmp_path, [cut(*chunks, cost=spent)], [Reply(ANSWER, usage=Usage(10, 2, 0, 0.25))], **spec
    )
    assert (heard.said, heard.kind, heard.data["response"]) == (ANSWER, "run.completed", ANSWER)
    (attempt,) = heard.data["metadata"]["attempts"]
    assert (attempt["provider"], attempt["error"]) == ("a/m", "provider_unavailable")
    usage = heard.data["metadata"]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["cost_usd"]) == (30, 5, 0.75)


async def test_what_nobody_counted_is_charged_as_an_estimate(tmp_path):
    heard = await told(tmp_path, [cut("Not yet")], [Reply(ANSWER, usage=Usage(10, 2))], stream="sentence")
    assert heard.kind == "run.completed"
    assert heard.data["metadata"]["usage"]["estimated"]
    assert heard.data["metadata"]["usage"]["output_tokens"] > 2


async def test_the_same_model_is_asked_again_where_it_is_the_only_one(tmp_path):
    heard = await told(tmp_path, [cut("Not yet"), ANSWER], stream="sentence")
    assert (heard.said, heard.kind) == (ANSWER, "run.completed")


async def test_nobody_is_asked_once_a_sentence_has_left(tmp_path):
    heard = await told(tmp_path, [cut("One. ", "Not yet")], [ANSWER], stream="sentence")
    assert (heard.said, heard.kind) == ("One. ", "run.failed")
    assert "broke off" in heard.data["detail"]


async def test_of_two_that_break_off_unheard_both_are_told(tmp_path):
    lines = [cut("Not"), cut("yet"), cut("at"), cut("all")]
    heard = await told(tmp_path, lines, lines, stream="sentence")
    assert (heard.said, heard.kind, heard.data["code"]) == ("", "run.failed", "all_providers_failed")
    assert "a/m: cut; b/m: cut" in heard.data["detail"]
    assert "broke off" not in heard.data["detail"]
