"""A real browser, and a server with something to show.

The browser is that of the npm package @sparticuz/chromium, else the system's Chromium. The package's list of
flags is not used: it holds `--disable-web-security`, with which a test of the policy proves nothing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from tests.platform.astromesh import PROGRAM, ServerProcess
from tests.platform.forked import shared
from tests.platform.processes import Command, plain_environment

ROOT = Path(__file__).parents[2]
UNPACKED = Path(sys.prefix) / "browser" / "unpacked"
FLAGS = ("--no-sandbox", "--headless=shell", "--no-zygote", "--disable-gpu")
SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
QUESTION = "How do I reset my password?"
AXE = Path(sys.prefix) / "browser" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="module")  # its event loop must be gone before a test of another module runs its own
def browser() -> Iterator[Browser]:
    """One browser for all tests of a module."""
    with launched() as running:
        yield running


expect.set_options(timeout=30_000)  # as long as other waits: the machine may be busy


@contextmanager
def launched() -> Iterator[Browser]:
    system = next((path for name in SYSTEM_BROWSERS if (path := shutil.which(name))), None)
    environment: dict[str, str | float | bool] = {**os.environ}
    if platform.machine() == "x86_64":
        path = str(UNPACKED / "chromium")
        environment |= {
            "LD_LIBRARY_PATH": str(UNPACKED / "al2023" / "lib"),
            "FONTCONFIG_PATH": str(UNPACKED / "fonts"),
        }
    else:
        assert system, "The tests of the console need a browser. On Debian: apt-get install chromium"
        path = system
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=path, env=environment, args=list(FLAGS), ignore_default_args=["--headless"]
        )
        yield running
        running.close()


#: the rules of axe-core that look at colours
COLOUR_RULES = ("color-contrast", "link-in-text-block")
#: two frames after a change, nothing says that it is loading
DRAWN = """async () => {
  const frame = () => new Promise(requestAnimationFrame);
  await frame(), await frame();
  const main = document.querySelector('main');
  return main?.querySelector('header h1') && !/^(Loading|Laying out)/m.test(main.innerText);
}"""


class Console:
    """A page of the console, and everything that went wrong in it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url, self.faults = url, list[str]()
        self.page: Page = context.new_page()
        #: requests without an answer; a stream of events may have none for long
        self._open: set[Request] = set()
        self.page.on("requestfinished", self._answered)
        self.page.on("requestfailed", self._answered)
        self.page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        self.page.on("console", self._note)
        self.page.on("request", self._check)

    def _answered(self, request: Request) -> None:
        self._open.discard(request)

    def _note(self, text: ConsoleMessage) -> None:
        refused = re.search(
            r"status of 4(?:0[1349]|10|22)", text.text
        )  # a browser logs what the page shows as a refusal
        if text.type == "error" and not refused:
            self.faults.append(f"console: {text.text}")

    def _check(self, request: Request) -> None:
        address = request.url
        if not address.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"request to {address}")
        if not address.endswith("/events"):
            self._open.add(request)

    def open(self, place: str) -> Page:
        """Shows a place, e.g. `runs?status=failed`, as a new document."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.url}/console/#/{place}")
        self.page.locator("main header h1").wait_for()
        return self.page

    def move(self, place: str) -> Page:
        """Shows a place in the open document, and returns when it has been drawn."""
        self.page.evaluate("(place) => (location.hash = `#/${place}`)", place)
        self.settle()
        return self.page

    def settle(self) -> None:
        """Returns when every request has been answered and everything is drawn."""
        while True:
            self.page.wait_for_function(DRAWN)
            if not self._open:
                return

    def lasting(self, find: Callable[[], list[str]]) -> list[str]:
        """What `find` finds for seconds: a page may be drawn a moment after its last answer."""
        for _ in range(40):
            if not (found := find()):
                return []
            self.page.wait_for_timeout(250)
        return found

    def violations(self, *, colours_only: bool = False) -> list[str]:
        """What axe-core finds on the page. Its other rules do not depend on the colour scheme."""
        return self.lasting(lambda: self._violations(colours_only))

    def wider_than(self, limit: int) -> list[str]:
        """Says so where the page is wider than so many pixels."""
        return self.lasting(
            lambda: (
                [f"{wide} of {limit} px"]
                if (wide := self.page.evaluate("() => document.querySelector('main').scrollWidth")) > limit
                else []
            )
        )

    def _violations(self, colours_only: bool) -> list[str]:
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(AXE.read_text())
        rules = {"runOnly": {"type": "rule", "values": list(COLOUR_RULES)}} if colours_only else {}
        options = {"resultTypes": ["violations"], **rules}
        found = self.page.evaluate("(options) => axe.run(options)", options)["violations"]
        return [f"{one['id']}: {node['html'][:160]}" for one in found for node in one["nodes"]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The sample agents, and one question that has been answered. The tests of a module share it."""
    server = ServerProcess(tmp_path_factory.mktemp("server"), ROOT / "config", spawn=shared().spawn)
    server.start()
    ask(server, QUESTION, "first")
    yield server
    server.close()
    assert server.network_attempts() == []


def ask(server: ServerProcess, query: str, session: str, agent: str = "support-agent") -> str:
    """A plain run, which is not recorded."""
    body = {"query": query, "session_id": session}
    answer = httpx.post(f"{server.url}/v1/agents/{agent}/run", json=body, timeout=30)
    run: str = answer.json()["run_id"]
    return run


def recorded(
    server: ServerProcess, agent: str = "support-agent", query: str = QUESTION, session: str = "recorded"
) -> str:
    """A durable run, which has ended."""
    body = {"query": query, "session_id": session}
    return ended(server, httpx.post(f"{server.url}/v1/agents/{agent}/runs", json=body, timeout=30).json())


def fork(server: ServerProcess, run: str, at: int, edit: dict[str, Any]) -> str:
    body = {"at": at, "edit": edit}
    return ended(server, httpx.post(f"{server.url}/v1/runs/{run}/fork", json=body, timeout=30).json())


def ended(server: ServerProcess, accepted: dict[str, Any]) -> str:
    run: str = accepted["run_id"]
    while httpx.get(f"{server.url}/v1/runs/{run}", timeout=30).json()["finished_at"] is None:
        time.sleep(0.02)
    return run


def ended_task(server: ServerProcess, workflow: str, given: Any) -> str:
    """A Task, which has ended."""
    url = f"{server.url}/v1/workflows/{workflow}/runs"
    task: str = httpx.post(url, json={"input": given}, timeout=30).json()["task_id"]
    while httpx.get(f"{server.url}/v1/tasks/{task}", timeout=30).json()["status"] in ("queued", "running"):
        time.sleep(0.02)
    return task


CASES = """\
cases:
  - {id: reset-password, input: How do I reset my password?, assertions: [{type: contains, expected: Forgot}]}
  - {id: plans, input: Which plans are there?, assertions: [{type: contains, expected: plan}]}
  - {id: invite, input: How do I invite a colleague?, assertions: [{type: contains, expected: %s}]}
"""


def with_evaluations(folder: Path, *, serve: Callable[[Path], ServerProcess]) -> ServerProcess:
    """A server of the sample agents with a dataset and two reports. One case passes in the first only."""
    config = folder / "config"
    shutil.copytree(ROOT / "config", config)
    (config / "evals").mkdir()
    server = serve(config)
    for expected in ("Invite", "Invoice"):
        (config / "evals" / "support-agent.yaml").write_text(CASES % expected)
        words = ["eval", "run", "support-agent", "--config", str(config), "--data", str(server.data)]
        done = shared().run(Command([PROGRAM, *words], plain_environment(folder), folder))
        assert (done.returncode == 0) == (expected == "Invite"), done.stderr
    return server


def newest_run(server: ServerProcess) -> str:
    run: str = httpx.get(f"{server.url}/v1/runs?limit=1", timeout=30).json()["runs"][0]["run_id"]
    return run


@pytest.fixture
def console(browser: Browser) -> Iterator[Callable[..., Console]]:
    """`console(server, width=…, scheme=…)` opens the console of a server; a fault in it fails the test."""
    opened: list[Console] = []
    contexts: list[BrowserContext] = []

    def show(server: ServerProcess, *, width: int = 1400, scheme: str = "light") -> Console:
        context = browser.new_context(
            viewport={"width": width, "height": 850},
            color_scheme=scheme,  # type: ignore[arg-type]
            locale="en-GB",
            reduced_motion="reduce",
        )
        contexts.append(context)
        opened.append(Console(context, server.url))
        return opened[-1]

    yield show
    for context in contexts:
        context.close()
    faults = [fault for one in opened for fault in one.faults]
    assert not faults, "\n".join(faults)
