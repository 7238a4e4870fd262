"""A result that is too long for a model: cut with a note, kept whole, read on by model and caller."""

from __future__ import annotations

from pathlib import Path

from astromesh.testing import ScriptedProvider
from astromesh.types import ToolCall
from tests.integration.agents_folder import client_of, manifest, runtime_of, write
from tests.integration.sample_tools import novel

TOOLS = [
    {
        "name": "novel", "type": "internal", "function": "tests.integration.sample_tools:novel",
        "max_result_tokens": 1000,
    },
    {"name": "read_on", "type": "builtin", "builtin": "read_result"},
]  # fmt: skip
QUESTION = {"query": "Tell me a story.", "session_id": "s"}


async def test_a_long_result_is_cut_and_read_on(tmp_path: Path) -> None:
    model = ScriptedProvider(
        [ToolCall("c1", "novel", '{"pages": 50}')],
        [ToolCall("c2", "read_on", '{"id": "c1", "start": 4000}')],
        [
            ToolCall("c3", "read_on", '{"id": "c1", "start": 28000}'),
            ToolCall("c4", "read_on", '{"id": "c1", "start": 60000}'),
            ToolCall("c5", "read_on", '{"id": "c9"}'),
        ],
        "The end.",
    )
    async with client_of(runtime_of(write(tmp_path, manifest(tools=TOOLS)), model)) as client:
        answer = (await client.post("/v1/agents/helper/run", json=QUESTION)).json()
        place = f"/v1/runs/{answer['run_id']}/results"
        whole = await client.get(f"{place}/c1")
        none = await client.get(f"{place}/c9")
        nobodys = await client.get("/v1/runs/run_x/results/c1")
        await client.delete("/v1/principals/anonymous/data")
        erased = await client.get(f"{place}/c1")
    story = novel(50)
    heard = [message.content for message in model.requests[-1].messages if message.role == "tool"]
    cut, first, second, beyond, unknown = heard
    assert cut == story[:4000] + "\n[cut: the result has 50000 characters, kept as 'c1']"
    assert first == story[4000:28000] + "\n[characters 4000 to 28000 of 50000]"
    assert second.startswith(story[28000:])
    assert "start must be between 0 and 49999" in beyond
    assert "no stored result 'c9'" in unknown
    assert (whole.status_code, whole.text) == (200, story)
    assert (none.status_code, none.json()["code"]) == (410, "events_gone")
    assert nobodys.status_code == 404
    assert erased.status_code in (404, 410)
