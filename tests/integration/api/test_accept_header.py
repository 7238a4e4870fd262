"""Whether a run is streamed is what the weights of `Accept` say (RFC 9110, 12.5.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import client_of, manifest, runtime_of, write

JSON, STREAM = "application/json", "text/event-stream"
ASKED = {
    "": JSON,
    "*/*": JSON,
    "application/json": JSON,
    "text/event-stream": STREAM,
    "Text/Event-Stream": STREAM,
    "text/event-stream;charset=utf-8": STREAM,
    "text/event-stream;q=0": JSON,
    "text/event-stream; q=0.000, */*": JSON,
    "text/event-stream;Q=0": JSON,
    "application/json, text/event-stream": STREAM,
    "application/json;q=0.9, text/event-stream": STREAM,
    "application/json, text/event-stream;q=0.9": JSON,
    "text/event-stream, */*;q=0.1": STREAM,
    "text/event-stream;q=0.5, application/*;q=0.8": JSON,
    "text/event-stream;q=0.5, application/json;q=0.2, */*": STREAM,
    "text/event-stream;q=much": STREAM,
    "text/event-streams": JSON,
}


async def test_a_run_is_streamed_where_it_is_asked_for(tmp_path: Path, subtests: pytest.Subtests) -> None:
    provider = ScriptedProvider("hello", repeat=True)
    async with client_of(runtime_of(write(tmp_path, manifest()), provider)) as client:
        for accept, expected in ASKED.items():
            with subtests.test(accept):
                answer = await client.post(
                    "/v1/agents/helper/run",
                    json={"query": "go", "session_id": "s"},
                    headers={"accept": accept},
                )
                assert answer.status_code == 200
                assert answer.headers["content-type"].partition(";")[0] == expected
