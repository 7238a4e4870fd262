"""The tools that come with astromesh: what they do, and what nobody can make them do."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from astromesh.errors import InvalidToolCall, ToolError, ToolFailed
from astromesh.net.http import Http
from astromesh.plugins import Deps, Plugins
from astromesh.testing import ManualClock
from astromesh.tools.base import Tool, ToolContext
from astromesh.tools.kinds.builtin import calculate

CONTEXT = ToolContext()


@asynccontextmanager
async def opened(
    builtin: str, folder: Path, allow: tuple[str, ...] = (), **options: Any
) -> AsyncIterator[Tool]:
    async with Http(allow) as http:
        deps = Deps(http=http, clock=ManualClock(), data_dir=folder, config_dir=folder)
        yield await Plugins().open("tools", "builtin", {"builtin": builtin, **options}, deps)


# -- calculator ----------------------------------------------------------------------------------------------

SUMS = [
    ("1 + 2 * 3", 7), ("(1 + 2) * 3", 9), ("2 ** 3 ** 2", 512), ("2^10", 1024), ("-2 ** 2", -4),
    ("10 / 4", 2.5), ("10 // 4", 2), ("10 % 4", 2), ("--1", 1), ("1.5e3 + .5", 1500.5), ("sqrt(16)", 4.0),
    ("max(1, 2, min(5, 3))", 3), ("round(2.567, 2)", 2.57), ("pi > 3", None), ("2 * pi", 6.283185307179586),
    ("10 ** 30", 10**30), ("0.1 + 0.2", 0.30000000000000004), ("gcd(12, 18)", 6), ("2 - 3 - 4", -5),
    ("007 + 0.5", 7.5), (" 1\n+ 2", 3), ("1" + " + 1" * 240, 241),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "value"), [pair for pair in SUMS if pair[1] is not None])
def test_it_calculates(expression: str, value: float) -> None:
    assert calculate(expression) == pytest.approx(value)


REFUSED = [
    "", " ", "1 +", "(1", "1)", "1 2", "x", "import os", "__import__('os')", "().__class__", "1;2", "a=1",
    "9 ** 9 ** 9", "9 ** 9999999", "2 ** 5000", "factorial(10 ** 9)", "1 / 0", "0 ** -1", "sqrt(-1)",
    "(-8) ** 0.5", "1e999", "10.0 ** 400", "(" * 500, "-" * 900, "1" * 2000, "sqrt()", "sqrt(1, 2)", "min()",
    "round(1, -99999999999)", "round(1, 10 ** 1000)", "exp(10000)", "log(0)", "pi(1)", "sqrt", "1,2", "٣",
    "True", "1if 1else 2", "max(*[1])", "-" * 900 + "1", "\0",
]  # fmt: skip


@pytest.mark.parametrize("expression", REFUSED)
def test_what_is_no_calculation_is_refused_at_once(expression: str) -> None:
    with pytest.raises(InvalidToolCall):
        calculate(expression)


@given(st.text("0123456789.+-*/%^(), episqrtmaxround", max_size=60))
def test_whatever_is_written_is_a_number_or_a_refusal(expression: str) -> None:
    try:
        value = calculate(expression)
    except InvalidToolCall:
        return
    assert isinstance(value, int | float)


# -- time ----------------------------------------------------------------------------------------------------


async def test_the_time_comes_from_the_clock_in_the_zone_that_was_asked_for(tmp_path: Path) -> None:
    async with opened("current_time", tmp_path) as tool:
        utc: Any = await tool.call({}, CONTEXT)
        tokyo: Any = await tool.call({"timezone": "Asia/Tokyo"}, CONTEXT)
        for wrong in ("Nowhere/City", "../../etc/passwd", "/etc/passwd", "", "\0"):
            with pytest.raises(InvalidToolCall):
                await tool.call({"timezone": wrong}, CONTEXT)
    assert utc["time"].endswith("+00:00")
    assert tokyo["time"].endswith("+09:00")


# -- files ---------------------------------------------------------------------------------------------------


async def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    async with opened("write_file", tmp_path) as write, opened("read_file", tmp_path) as read:
        for text in ("first", "ünïcode", ""):
            done: Any = await write.call({"path": "notes/today.txt", "content": text}, CONTEXT)
            assert done == {"path": "notes/today.txt", "bytes": len(text.encode())}
            assert await read.call({"path": "notes/today.txt"}, CONTEXT) == text
    assert [p.name for p in (tmp_path / "files" / "notes").iterdir()] == ["today.txt"]


OUTSIDE = [
    "../secret", "/etc/passwd", "a/../../secret", "link", "folder/secret", "..", ".", "", "~/secret", "a\0b",
    "..\\secret", "fifo", "sub", "x" * 300, "/".join("a" * 40), "deep/../../../secret", "missing",
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "inside"
    (inside / "sub").mkdir(parents=True)
    (tmp_path / "secret").write_text("the secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(tmp_path)
    os.mkfifo(inside / "fifo")
    return inside


@pytest.mark.parametrize("path", OUTSIDE)
async def test_no_path_leads_out_and_nothing_but_files_is_read(root: Path, path: str) -> None:
    async with opened("read_file", root, root=str(root)) as tool:
        with pytest.raises(ToolFailed) as found:
            await tool.call({"path": path}, CONTEXT)
    assert "the secret" not in str(found.value)
    assert str(root) not in str(found.value)


@pytest.mark.parametrize("path", [path for path in OUTSIDE if path != "missing"])
async def test_no_path_leads_out_when_writing(root: Path, path: str) -> None:
    async with opened("write_file", root, root=str(root)) as tool:
        with pytest.raises(ToolFailed):
            await tool.call({"path": path, "content": "changed"}, CONTEXT)
    assert (root.parent / "secret").read_text() == "the secret"
    assert (root / "link").is_symlink()


async def test_sizes_are_bounded_and_bytes_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "big").write_text("x" * 11)
    (tmp_path / "picture").write_bytes(b"\xff\xfe")
    async with opened("read_file", tmp_path, root=".", max_bytes=10) as read:
        for path in ("big", "picture"):
            with pytest.raises(ToolFailed):
                await read.call({"path": path}, CONTEXT)
    async with opened("write_file", tmp_path, root=".", max_bytes=10) as write:
        with pytest.raises(ToolFailed):
            await write.call({"path": "new", "content": "x" * 11}, CONTEXT)
    assert not (tmp_path / "new").exists()


# -- http ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"method": request.method, "body": (await request.text())})

    async def away(request: web.Request) -> web.Response:
        raise web.HTTPFound("http://169.254.169.254/latest/meta-data")

    app = web.Application()
    app.router.add_route("*", "/", answer)
    app.router.add_get("/away", away)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


FORGED = [
    "http://127.0.0.1/", "http://localhost/", "http://169.254.169.254/", "http://[::1]/", "http://10.0.0.1/",
    "http://0.0.0.0/", "http://2130706433/", "file:///etc/passwd", "ftp://x/", "x", "",
]  # fmt: skip


@pytest.mark.parametrize("url", FORGED)
async def test_a_model_reaches_nothing_but_the_open_internet(tmp_path: Path, url: str) -> None:
    async with opened("http_request", tmp_path) as tool:
        with pytest.raises(ToolError):
            await tool.call({"url": url}, CONTEXT)


async def test_it_asks_allowed_hosts_with_allowed_methods_and_redirects_are_judged(tmp_path: Path) -> None:
    async with (
        site() as url,
        opened("http_request", tmp_path, ("127.0.0.1",), methods=["GET", "POST"]) as tool,
    ):
        got: Any = await tool.call({"url": url}, CONTEXT)
        assert (got["status"], '"method": "GET"' in got["body"]) == (200, True)
        sent: Any = await tool.call({"url": url, "method": "POST", "body": {"a": 1}}, CONTEXT)
        assert '{\\"a\\":1}' in sent["body"]
        for wrong in (
            {"url": url, "method": "DELETE"},
            {"url": url, "headers": {"Host": "evil"}},
            {"url": url, "headers": {"x": "a\r\nb: c"}},
            {"url": f"{url}/away"},
        ):
            with pytest.raises(ToolError):
                await tool.call(wrong, CONTEXT)
