"""`GET /openapi.json` keeps no run waiting, and is made once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import orjson
from fastapi import FastAPI
from starlette.datastructures import State

from astromesh.api.auth import Auth
from astromesh.api.routes import docs


class Slow(FastAPI):
    """Routes whose description is made when it may be; the first `fails` times there is no memory for it."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__(openapi_url=None)
        self.state = State({"auth": Auth()})
        self.router.routes.extend(docs.router.routes)
        self.begun, self.may, self.made, self.fails = threading.Event(), threading.Event(), 0, fails

    def openapi(self) -> dict[str, Any]:
        self.begun.set()
        assert self.may.wait(30)
        self.made += 1
        if self.made <= self.fails:
            raise MemoryError
        return {"openapi": "3.1.0"}


def client(app: FastAPI) -> httpx.AsyncClient:
    wire = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=wire, base_url="http://localhost")


async def test_the_loop_goes_on_while_it_is_made_once_for_all_who_ask() -> None:
    app = Slow()
    async with client(app) as http:
        left = asyncio.create_task(http.get("/openapi.json"))
        assert await asyncio.to_thread(app.begun.wait, 30)
        left.cancel()
        asked = [asyncio.create_task(http.get("/openapi.json")) for _ in range(3)]
        await asyncio.sleep(0)
        app.may.set()  # this loop is free to say so
        answers = [*await asyncio.gather(*asked), await http.get("/openapi.json")]
    assert [orjson.loads(answer.content) for answer in answers] == [{"openapi": "3.1.0"}] * 4
    assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
    assert app.made == 1


async def test_one_that_failed_is_made_again() -> None:
    app = Slow(fails=1)
    app.may.set()
    async with client(app) as http:
        statuses = [(await http.get("/openapi.json")).status_code for _ in range(3)]
    assert (statuses, app.made) == ([500, 200, 200], 2)
