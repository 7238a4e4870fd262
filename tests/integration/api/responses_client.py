"""An agent behind the Responses API, with clients of it, and what the published schema says of each event."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import openresponses_types.types as published
from pydantic import BaseModel

from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, served, write

#: the published class of each type of event
EVENTS: dict[str, type[BaseModel]] = {
    next(iter(kind.model_fields["type"].annotation)).value: kind
    for name, kind in vars(published).items()
    if name.endswith("StreamingEvent")
}


class House(NamedTuple):
    provider: ScriptedProvider
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    async def create(self, input: Any = "Hello?", **more: Any) -> dict[str, Any]:
        """Creates a response, which the published schema holds."""
        answer = await self.http.post("/responses", json={"model": "helper", "input": input, **more})
        assert answer.status_code == 200, answer.text
        return checked(answer.json())

    async def stream(self, input: Any = "Hello?", **more: Any) -> list[dict[str, Any]]:
        body = {"model": "helper", "input": input, "stream": True, **more}
        return events_of((await self.http.post("/responses", json=body)).text)

    async def get(self, id: str) -> dict[str, Any]:
        return checked((await self.http.get(f"/responses/{id}")).json())

    async def replay(self, id: str, after: int | None = None) -> list[dict[str, Any]]:
        more = {} if after is None else {"starting_after": after}
        answer = await self.http.get(f"/responses/{id}", params={"stream": "true", **more})
        return events_of(answer.text)

    def conversation(self, request: int = -1) -> list[tuple[str, str]]:
        messages = self.provider.requests[request].messages
        return [(m.role, m.content) for m in messages if m.role != "system"]


@asynccontextmanager
async def house_of(
    path: Path,
    *script: Any,
    clock: Any = None,
    provider: ScriptedProvider | None = None,
    others: Sequence[str] = (),
    **spec: Any,
) -> AsyncIterator[House]:
    provider = provider or ScriptedProvider(*script)
    folder = write(path, manifest(**spec), *map(manifest, others))
    runtime = runtime_of(folder, provider, **({"clock": clock} if clock else {}))
    async with served(runtime) as at:
        url = f"http://{at}/v1"
        async with (
            openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url, timeout=60) as http,
        ):
            yield House(provider, client, http)


def checked(response: dict[str, Any]) -> dict[str, Any]:
    published.ResponseResource.model_validate(response)
    return response


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a whole stream, each as the published schema has it, in unbroken order."""
    blocks = [block.splitlines() for block in text.strip().split("\n\n")]
    assert blocks[-1] == ["data: [DONE]"], text
    events = [json.loads(data.removeprefix("data: ")) for _, data in blocks[:-1]]
    assert [f"event: {one['type']}" for one in events] == [kind for kind, _ in blocks[:-1]]
    for event in events:
        EVENTS[event["type"]].model_validate(event)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
    return events


def text_of(response: dict[str, Any]) -> str:
    parts = [part for item in response["output"] if item["type"] == "message" for part in item["content"]]
    return "".join(part["text"] for part in parts)


def deltas_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
