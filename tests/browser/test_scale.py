"""What must be seen: very long runs, and hostile text wherever agents, tools and users can write."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from unicodedata import category

import httpx
import pytest
from playwright.sync_api import Page, Route

from tests.browser.conftest import Console, ended, recorded
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.platform.astromesh import ServerProcess
from tests.platform.model import MockModel

MANY = 10_000
#: of a tool in one step
CALLS = 10


def test_a_run_with_ten_thousand_events_is_drawn_in_part_and_scrolls(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    shown = console(server)
    shown.page.route("**/events", many_events)
    page = shown.open(f"runs/{recorded(server)}?tab=Events")
    page.get_by_text(f"{MANY} events").wait_for()
    page.locator("button.line").first.wait_for()
    assert page.locator("button.line").count() < 100
    assert page.evaluate(SCROLL) == []
    page.locator("button.line", has_text="run.completed").wait_for()
    page.get_by_label("Type contains").fill("run.")
    page.locator("button.line").and_(page.locator(":only-of-type")).wait_for()


def many_events(route: Route) -> None:
    """A stream as the server sends it."""
    calls = [("tool.started", {"id": str(n), "name": "look", "arguments": {"n": n}}) for n in range(1, MANY)]
    events = [*calls, ("run.completed", {"response": "done"})]
    body = "".join(
        f"id: {seq}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
        for seq, (kind, data) in enumerate(events, 1)
    )
    route.fulfill(status=200, content_type="text/event-stream", body=body)


#: Scrolls to the end in a hundred leaps, and names those behind which no row stood in the middle of the list.
SCROLL = """async () => {
  const list = document.querySelector('.long');
  const { left, top, width, height } = list.getBoundingClientRect();
  const frame = () => new Promise(requestAnimationFrame);
  const empty = [];
  for (let n = 1; n <= 100; n++) {
    list.scrollTop = (list.scrollHeight * n) / 100;
    await frame(), await frame(), await frame();
    if (!document.elementFromPoint(left + width / 2, top + height / 2)?.closest('button.line')) empty.push(n);
  }
  return empty;
}"""


def test_a_very_long_session_id_fits_a_narrow_page(
    server_process: ServerFactory, mock_llm: MockModel, tmp_path: Path, console: Callable[..., Console]
) -> None:
    server, session = server_process(write(tmp_path, agent(mock_llm))), "W" * 200
    run = told(server, mock_llm, "Hello", session)
    mock_llm.script({"tool_calls": [{"name": "ask", "arguments": {"query": "x"}}]})
    httpx.post(f"{server.url}/v1/agents/helper/runs", json={"query": "x", "session_id": session}, timeout=30)
    shown = console(server, width=390)
    page = shown.open("home")
    for place in (f"sessions/helper/{session}", "sessions?agent=helper", f"runs/{run}", "approvals"):
        shown.move(place)
        page.locator("main", has_text=session[:9]).wait_for()
        assert shown.wider_than(390) == [], place
    page.get_by_role("link", name=session[:9]).click()
    page.wait_for_url("**/sessions/helper/W*")


SCRIPT = "window.ran = 1"
HOSTILE = (
    f"<script>{SCRIPT}</script>",
    f"<img src=x onerror='{SCRIPT}'>",
    f"<svg onload='{SCRIPT}'></svg>",
    f"<svg><script>{SCRIPT}</script></svg>",
    f"<body onload='{SCRIPT}'>",
    f"<iframe srcdoc='<script>{SCRIPT}</script>'></iframe>",
    "<iframe src='javascript:window.ran=1'></iframe>",
    "<a href='javascript:window.ran=1'>x</a>",
    "[x](javascript:window.ran=1)",
    "[x](JaVaScRiPt:window.ran=1)",
    "[x](java\tscript:window.ran=1)",
    "[x](data:text/html,<script>window.ran=1</script>)",
    "[x](vbscript:window.ran=1)",
    "![x](https://evil.example/pixel.png)",
    '![x](x" onerror="window.ran=1)',
    "<https://evil.example>",
    "<img src='https://evil.example/pixel.png'>",
    "<link rel=stylesheet href='https://evil.example/x.css'>",
    "<style>*{display:none}</style>",
    "<base href='https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<form action='https://evil.example/'><button>Approve</button></form>",
    "<input autofocus onfocus='window.ran=1'>",
    "<details open ontoggle='window.ran=1'>x</details>",
    "<video><source onerror='window.ran=1'></video>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=window.ran=1>",
    "<object data='javascript:window.ran=1'></object>",
    "<embed src='javascript:window.ran=1'>",
    "<template><script>window.ran=1</script></template>",
    "<noscript><img src=x onerror=window.ran=1></noscript>",
    '"><script>window.ran=1</script>',
    "'-window.ran=1-'",
    "${window.ran=1}",
    "{{constructor.constructor('window.ran=1')()}}",
    "</textarea><script>window.ran=1</script>",
    "</title><script>window.ran=1</script>",
    "<!--><script>window.ran=1</script>-->",
    "]]><script>window.ran=1</script>",
    "<div style='position:fixed;inset:0;background:red'>x</div>",
    "<p id=app class=skip>x</p>",
    "`<img src=x onerror=window.ran=1>`",
    "```html\n<script>window.ran=1</script>\n```",
    "\u202egnirts desrever",
    "\u2066isolated\u2069",
    "zero\u200bwidth\ufeff",
    "bell\x07 escape\x1b[31m",
    "\u0085\u009b31m",
    "W" * 20_000,
    "a\u0301" * 3_000,
    "<" * 3_000,
)
#: what must not come of a text: elements that run, load, cover or send something
ELEMENTS = """
    script style iframe object embed video base meta link template math form[action] [onerror] [onload]
    [style*=fixed] a[href^="javascript"i] a[href^="data"i]
"""
FOUND = """(elements) => {
  const main = document.querySelector('main');
  const hidden = /[\\u0007\\u001b\\u0085\\u009b\\u200b\\u202e\\u2066\\u2069\\ufeff]/g;
  return {
    ran: window.ran ?? null,
    elements: [...main.querySelectorAll(`img, ${elements}`)].map((one) => one.outerHTML.slice(0, 80)),
    unseen: (main.innerText.match(hidden) || []).length,
    width: main.scrollWidth - main.clientWidth,
  };
}"""
INERT: dict[str, object] = {"ran": None, "elements": [], "unseen": 0, "width": 0}


@pytest.mark.timeout(300)  # fifty runs, each on a page of its own
def test_hostile_text_is_inert_in_every_field_that_agents_tools_and_users_fill(
    server_process: ServerFactory, mock_llm: MockModel, tmp_path: Path, console: Callable[..., Console]
) -> None:
    assert len(HOSTILE) == 50
    server = server_process(write(tmp_path, agent(mock_llm)))
    shown = console(server)
    shown.page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    page, bad = shown.open("runs"), {}
    answers = [told(server, mock_llm, text, "answers") for text in HOSTILE]
    places = [
        (f"runs/{run}?tab=Answer", ".markdown", repr(text[:60]))
        for run, text in zip(answers, HOSTILE, strict=True)
    ]
    for n in range(0, len(HOSTILE), CALLS):
        run = told(server, mock_llm, "x", f"calls-{n}", HOSTILE[n : n + CALLS])
        for place, part in (("step=5", ".msg"), (f"step={6 + CALLS}", ".msg"), ("tab=Events", "button.line")):
            places.append((f"runs/{run}?{place}", part, f"calls from {n}"))
    for n in range(0, len(HOSTILE), CALLS):  # they wait for a person
        calls = [{"name": "ask", "arguments": {"query": one}} for one in HOSTILE[n : n + CALLS]]
        mock_llm.script({"tool_calls": calls})
        body = {"query": "x", "session_id": f"asks-{n}"}
        httpx.post(f"{server.url}/v1/agents/helper/runs", json=body, timeout=30)
    places += [
        ("home", "tbody tr", ""),
        ("runs", "tbody tr", ""),
        ("sessions?agent=helper", "tbody tr", ""),
        ("sessions/helper/answers", ".msg, .turn, .card", ""),
        ("approvals", ".ask", ""),
        ("chat?agent=helper&session=answers", ".turn .markdown", ""),
        (f"compare?a={answers[0]}&b={answers[1]}", ".diff", ""),
    ]
    for place, part, text in places:
        if (found := seen(page, place, part)) != INERT:
            bad[f"{text} at {place}"] = found
    assert bad == {}


def agent(model: MockModel) -> dict[str, object]:
    primary = {"provider": "openai", "endpoint": model.url, "api_key": "sk-test", "model": "mock"}
    tool = {"name": "now", "type": "internal", "function": "tests.integration.sample_tools:lookup"}
    asks = {**tool, "name": "ask", "approval": "required"}
    memory = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}
    return manifest("helper", model={"primary": primary}, tools=[tool, asks], memory=memory)


def told(server: ServerProcess, model: MockModel, text: str, session: str, called: Sequence[str] = ()) -> str:
    """A run whose message, tag and answer are this text; its tool is given the others, and returns them."""
    calls = [{"name": "now", "arguments": {"query": one}} for one in called]
    model.script(*([{"tool_calls": calls}] if calls else []), {"text": text})
    label = "".join(one for one in text[:40] if category(one) != "Cc")  # the server refuses those in tags
    body = {"query": text, "session_id": session, "tags": [label], "metadata": {"note": text[:200]}}
    return ended(server, httpx.post(f"{server.url}/v1/agents/helper/runs", json=body, timeout=30).json())


def seen(page: Page, place: str, part: str) -> dict[str, object]:
    """What is found on a page when the part with the text has been drawn."""
    page.evaluate("(place) => (location.hash = `#/${place}`)", place)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.locator(f"main {part}").first.wait_for(state="attached")  # an image leaves nothing
    found: dict[str, object] = page.evaluate(FOUND, ", ".join(ELEMENTS.split()))
    return found
