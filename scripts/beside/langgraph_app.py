"""LangGraph's prebuilt ReAct agent behind a FastAPI route: what a user of LangGraph would serve by hand."""

import os

import orjson
from bench_tools import lookup
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from pydantic import BaseModel

MODELS = {"plain": "mock", "tools": "mock+tools=2", "stream": "mock+tokens=200"}
AGENTS = {
    name: create_react_agent(
        ChatOpenAI(model=model, base_url=os.environ["MODEL_URL"], api_key="sk-bench", max_retries=0),
        [lookup] if name == "tools" else [],
        prompt=f"You are {name}.",
    )
    for name, model in MODELS.items()
}
app = FastAPI()


class RunRequest(BaseModel):
    query: str
    session_id: str


@app.get("/health/live")
async def live():
    return {"status": "ok"}


@app.post("/v1/agents/{name}/run")
async def run(name: str, body: RunRequest, request: Request):
    asked = {"messages": [("user", body.query)]}
    if "text/event-stream" in request.headers.get("accept", ""):

        async def relay():
            async for chunk, _ in AGENTS[name].astream(asked, stream_mode="messages"):
                if chunk.content:
                    yield b"event: model.delta\ndata: " + orjson.dumps({"content": chunk.content}) + b"\n\n"
            yield b"event: run.completed\ndata: {}\n\n"

        return StreamingResponse(relay(), media_type="text/event-stream")
    answered = await AGENTS[name].ainvoke(asked)
    return {"response": answered["messages"][-1].content, "agent": name, "session_id": body.session_id}
