"""The limit: what a bare FastAPI route costs that does nothing but one model call.

POST /v1/agents/{name}/run passes the query to the model and answers its text, over one pooled aiohttp
session; with `Accept: text/event-stream` it relays the model's stream. No pipeline, no memory, no
tools: no Python server of this kind can be faster with the same parts. The agent's name is the model.

    MODEL_URL=http://127.0.0.1:9100/v1 uvicorn limit_app:app --port 9200
"""

import os

import aiohttp
import orjson
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

URL = os.environ.get("MODEL_URL", "http://127.0.0.1:9100/v1") + "/chat/completions"
MODELS = {
    "plain": "mock",
    "stream": "mock+tokens=200",
    "slow": "mock+latency=1000",
    "first": "mock+tokens=20+latency=100+gap=5",
}
app = FastAPI()
sessions: list[aiohttp.ClientSession] = []


def session() -> aiohttp.ClientSession:
    if not sessions:
        sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
    return sessions[0]


class RunRequest(BaseModel):
    query: str
    session_id: str


@app.get("/health/live")
async def live():
    return {"status": "ok"}


@app.post("/v1/agents/{name}/run")
async def run(name: str, body: RunRequest, request: Request):
    payload = {
        "model": MODELS.get(name, "mock"),
        "messages": [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": body.query},
        ],
    }
    headers = {"content-type": "application/json"}
    if "text/event-stream" in request.headers.get("accept", ""):
        payload["stream"] = True

        async def relay():
            async with session().post(URL, data=orjson.dumps(payload), headers=headers) as answer:
                async for line in answer.content:
                    if line.startswith(b"data: {"):
                        choices = orjson.loads(line[6:])["choices"]
                        if choices and (text := choices[0]["delta"].get("content")):
                            yield b"event: model.delta\ndata: " + orjson.dumps({"content": text}) + b"\n\n"
            yield b"event: run.completed\ndata: {}\n\n"

        return StreamingResponse(relay(), media_type="text/event-stream")
    async with session().post(URL, data=orjson.dumps(payload), headers=headers) as answer:
        text = orjson.loads(await answer.read())["choices"][0]["message"]["content"]
    return {"response": text, "agent": name, "session_id": body.session_id, "metadata": {}}
