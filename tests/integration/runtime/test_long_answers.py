"""`limits.max_answer_bytes`: an answer that is too long is an error which names the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from astromesh.errors import AnswerTooLong
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import RecordingSink, ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write


def limited(folder: Path, text: Any, **spec: Any) -> AgentRuntime:
    write(folder, manifest(**spec))
    runtime = {
        "apiVersion": "astromesh/v1",
        "kind": "RuntimeConfig",
        "spec": {"limits": {"max_answer_bytes": 1000}},
    }
    (folder / "runtime.yaml").write_text(yaml.safe_dump(runtime))
    return runtime_of(folder, ScriptedProvider(text, repeat=True))


@pytest.mark.parametrize("text", ["a" * 1000, "ä" * 500])
async def test_an_answer_may_have_as_many_bytes_as_the_limit(tmp_path: Path, text: str) -> None:
    async with limited(tmp_path, text) as runtime:
        assert (await runtime.run("helper", "Why?", "s")).response == text


@pytest.mark.parametrize("text", ["a" * 1001, "ä" * 501])
async def test_a_longer_answer_is_an_error_that_names_the_limit(tmp_path: Path, text: str) -> None:
    async with client_of(limited(tmp_path, text)) as client:
        answer = await client.post("/v1/agents/helper/run", json={"query": "Why?", "session_id": "s"})
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (502, "answer_too_long")
    assert "1000 bytes (limits.max_answer_bytes)" in problem["detail"]


@pytest.mark.parametrize("word", ["word ", "wörd "])
async def test_a_stream_ends_where_the_limit_is_reached_and_is_charged(tmp_path: Path, word: str) -> None:
    sink = RecordingSink()
    async with limited(tmp_path, word * 10_000) as runtime:
        with pytest.raises(AnswerTooLong):
            await runtime.run("helper", "Why?", "s", sinks=[sink])
    text = "".join(event.data["content"] for event in sink.events if event.type == "model.delta")
    assert len(text.encode()) <= 1000
    failed = next(event for event in sink.events if event.type == "model.failed")
    assert failed.data["usage"]["output_tokens"] > 0
    assert sink.events[-1].data["code"] == "answer_too_long"


async def test_an_answer_of_several_parts_counts_as_a_whole(tmp_path: Path) -> None:
    pattern = {"pattern": "parallel_fan_out", "branches": [{}, {}], "merge": "concat"}
    letters = iter("ab")
    async with limited(tmp_path, lambda request: next(letters) * 700, orchestration=pattern) as runtime:
        with pytest.raises(AnswerTooLong):
            await runtime.run("helper", "Why?", "s")
