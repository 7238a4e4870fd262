"""Every page of the console in a real browser: it draws, keeps to its policy, and is accessible."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.browser.conftest import QUESTION, Console, ask, ended_task, fork, newest_run, recorded
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.integration.workflow.folders import small
from tests.platform.astromesh import PROGRAM, ServerProcess
from tests.platform.model import MockModel

PLACES = (
    "home",
    "chat?agent=support-agent",
    "chat?agent=support-agent&session=first",
    "runs",
    "runs?status=failed",
    "runs/{run}",
    "runs/{run}?tab=Answer",
    "runs/{run}?tab=Graph",
    "runs/{run}?tab=Events",
    "runs/{recorded}",
    "runs/{recorded}?step=5",
    "runs/{recorded}?step=7",
    "compare",
    "compare?a={recorded}&b={fork}",
    "compare?a={recorded}&b={fork}&c={recorded}",
    "approvals",
    "workflows",
    "tasks/{task}",
    "tasks/{task}?tab=Steps",
    "tasks/{task}?tab=History",
    "agents",
    "agents/support-agent",
    "agents/debate-agent?tab=Graph",
    "agents/support-agent?tab=YAML",
    "agents/support-agent?tab=Tools",
    "agents/support-agent?tab=Memory",
    "agents/support-agent?tab=Evaluations",
    "agents/support-agent?tab=Playground",
    "sessions?agent=support-agent",
    "sessions/support-agent/first",
    "knowledge",
    "system",
    "system?tab=Queues",
    "system?tab=Budgets",
    "system?tab=Channels",
    "system?tab=Keys",
    "system?tab=Stores",
    "system?tab=Tools",
    "system?tab=Configuration",
    "system?tab=Audit",
    "nowhere",
)


@pytest.fixture(scope="module")
def runs(server: ServerProcess) -> dict[str, str]:
    """A plain run, a recorded one, a fork of that, and a Task, which fails without a model."""
    plain, run = newest_run(server), recorded(server)
    forked = fork(server, run, 5, {"tool_result": "No article."})
    task = ended_task(server, "contract_review", {"text": "A contract."})
    return {"run": plain, "recorded": run, "fork": forked, "task": task}


@pytest.mark.timeout(300)  # a checker walks through three dozen pages
def test_every_page_is_accessible_in_both_schemes_and_no_wider_than_its_window(
    server: ServerProcess, runs: dict[str, str], console: Callable[..., Console]
) -> None:
    shown, found = console(server, width=1600), []
    page = shown.open("home")
    for place in PLACES:
        shown.move(place.format(**runs))
        found += [f"{place}: {violation}" for violation in shown.violations()]
        page.emulate_media(color_scheme="dark")
        found += [f"{place}, dark: {violation}" for violation in shown.violations(colours_only=True)]
        page.emulate_media(color_scheme="light")
        for width in (1600, 390):
            page.set_viewport_size({"width": width, "height": 850})
            wide = shown.wider_than(width if width < 720 else width - 200)
            found += [f"{place}: {one}" for one in wide]
        page.set_viewport_size({"width": 1600, "height": 850})
    assert not found, "\n".join(found)


def test_where_the_address_names_no_tab_of_the_page_the_first_is_shown(
    server: ServerProcess, runs: dict[str, str], console: Callable[..., Console]
) -> None:
    shown = console(server)
    page = shown.open("home")
    for place, first in (
        ("runs/{run}", "Steps"),
        ("tasks/{task}", "Stages"),
        ("agents/support-agent", "Parts"),
        ("evaluations", "Runs"),
        ("system", "Models"),
    ):
        shown.move(f"{place.format(**runs)}?tab=toString")
        expect(page.locator("main .tab[aria-pressed=true]")).to_have_text(first)


def test_a_question_is_answered_and_its_run_opens(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    page = console(server).open("chat?agent=support-agent")
    page.get_by_label("Message to support-agent").fill(QUESTION)
    page.keyboard.press("Enter")
    answers = page.locator(".turn .markdown", has_text="Forgot password?")
    answers.wait_for()
    expect(page.locator(".turn.user")).to_have_text(QUESTION)
    page.reload()
    answers.wait_for()
    expect(page.locator(".turn")).to_have_count(2)
    page.get_by_label("Sources").get_by_role("link").first.click()
    page.locator("mark", has_text="Forgot password?").wait_for()


#: Keeps the name of every step that has ever been drawn.
KEEP_NAMES = """() => {
  window.names = new Set();
  new MutationObserver(() => {
    for (const one of document.querySelectorAll('.step .name')) window.names.add(one.textContent);
  }).observe(document, { subtree: true, childList: true, characterData: true });
}"""


@pytest.mark.parametrize("kind", ["run", "recorded"])
def test_the_steps_of_a_run_are_drawn_once_and_walked_by_keyboard(
    server: ServerProcess, runs: dict[str, str], console: Callable[..., Console], kind: str
) -> None:
    shown = console(server)
    shown.page.add_init_script(f"({KEEP_NAMES})()")
    page = shown.open(f"runs/{runs[kind]}")
    page.locator(".step", has_text="search_knowledge_base").wait_for()
    names = page.locator(".step .name").all_text_contents()
    assert [name for name in names if "Input rules" in name]
    for key, at in (("j", 1), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
        page.keyboard.press(key)
        page.get_by_text(f"{at + 1} of {len(names)}").wait_for()
        assert page.locator(".step.on .name").text_content() == names[at]
    assert set(page.evaluate("() => [...window.names]")) == set(names)
    page.keyboard.press("?")
    page.get_by_role("dialog", name="Keys").get_by_text("Next step").wait_for()


def test_a_case_of_a_run_is_shown_and_written_when_the_reader_says_so(
    server_process: ServerFactory, tmp_path: Path, console: Callable[..., Console]
) -> None:
    server = server_process(
        write(tmp_path / "config", manifest("helper", model={"primary": {"provider": "embedded"}}))
    )
    body = {"query": "How are you?", "session_id": "s"}
    run_id = httpx.post(f"{server.url}/v1/agents/helper/runs", json=body, timeout=30).json()["run_id"]
    page = console(server).open(f"runs/{run_id}")
    page.get_by_role("button", name="Make a case").click()
    dialog = page.get_by_role("dialog", name="A case for a dataset")
    dialog.get_by_text("This would be added to").wait_for()
    assert "How are you?" in dialog.inner_text()
    dialog.get_by_role("button", name="Write it").click()
    dialog.get_by_text("Written to").wait_for()
    assert "How are you?" in (tmp_path / "config" / "evals" / "helper.yaml").read_text()


def test_a_failed_run_and_task_say_why_on_every_tab(
    server_process: ServerFactory, mock_llm: MockModel, tmp_path: Path, console: Callable[..., Console]
) -> None:
    primary = {"provider": "openai", "endpoint": mock_llm.url, "api_key": "sk-test"}
    model = {"primary": {**primary, "model": "mock+status=400"}}
    config = write(tmp_path / "config", manifest("helper", model=model, recording=True))
    server = server_process(small(config, op="fail"))
    shown, run = console(server), recorded(server, "helper")
    page = shown.open(f"runs/{run}")
    for tab in ("Steps", "Answer", "Graph", "Events"):
        shown.move(f"runs/{run}?tab={tab}")
        expect(page.locator("main").get_by_text("asked to fail").first).to_be_visible()
    expect(page.get_by_text("Stopped by")).to_have_count(0)
    shown.move(f"tasks/{ended_task(server, 'small', 1)}")
    page.locator("main .refusal", has_text="as told").wait_for()


def test_a_task_that_waits_leads_to_its_question(
    server_process: ServerFactory, tmp_path: Path, console: Callable[..., Console]
) -> None:
    config = small(tmp_path / "config")
    path = config / "workflows" / "small" / "workflow.yaml"
    path.write_text(path.read_text().replace("op: 'ops:double'", "human: {instructions: Is it right?}"))
    server = server_process(config)
    url = f"{server.url}/v1/workflows/small/runs"
    tasks = [httpx.post(url, json={"input": n}, timeout=30).json()["task_id"] for n in range(9)]
    shown = console(server)
    page = shown.open(f"tasks/{tasks[-1]}")
    page.get_by_role("row", name="waiting x").wait_for()
    page.locator(".ask", has_text="Is it right?").get_by_role("link", name="Open the question").click()
    question = page.locator(f"[id^=ask-{tasks[-1]}]")
    expect(question).to_be_in_viewport()
    question.get_by_role("button", name="Approve").click()
    expect(page.locator(".ask")).to_have_count(8)


@pytest.mark.parametrize("place", ["runs/run_1", "tasks/task_1"])
def test_an_id_that_names_nothing_shows_the_refusal_alone(
    server: ServerProcess, console: Callable[..., Console], place: str
) -> None:
    shown = console(server)
    page = shown.open(place)
    page.get_by_role("alert").get_by_text("not_found").wait_for()
    shown.settle()
    expect(page.locator("main .pill")).to_have_count(0)
    expect(page.locator("main .empty")).to_have_count(0)


def test_a_page_that_is_opened_while_the_server_is_gone_appears_when_it_is_back(
    server_process: ServerFactory, tmp_path: Path, console: Callable[..., Console]
) -> None:
    server = server_process(write(tmp_path, manifest("helper", model={"primary": {"provider": "embedded"}})))
    shown = console(server)
    shown.page.clock.install()
    page = shown.open("home")
    shown.settle()
    server.kill()
    comes_later(page.get_by_text("The server does not answer.").first)
    page.get_by_role("navigation").get_by_role("link", name="Agents").click()
    page.get_by_role("button", name="Load it again").wait_for()
    server.start()
    comes_later(page.get_by_role("link", name="helper"))
    shown.faults.clear()  # a browser logs each request that a dead server has not answered


def test_a_narrow_window_shows_the_place_and_can_forget_the_key(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    shown = console(server, width=390)
    page = shown.open("home")
    page.evaluate("() => sessionStorage.setItem('astromesh-key', 'sk-1')")
    page = shown.open("system")
    expect(page.get_by_role("navigation").get_by_role("link", name="System")).to_be_in_viewport(ratio=1)
    forget = page.get_by_role("button", name="Forget the key")
    forget.scroll_into_view_if_needed()
    expect(forget).to_be_in_viewport(ratio=1)


def comes_later(wanted: Locator) -> None:
    """Returns when it is shown: the page asks again after five seconds, for one part after the other."""
    end = time.monotonic() + 30
    while not wanted.is_visible():
        assert time.monotonic() < end
        wanted.page.clock.fast_forward(5_000)
        wanted.page.wait_for_timeout(100)


def test_new_runs_wait_behind_a_button(server: ServerProcess, console: Callable[..., Console]) -> None:
    shown = console(server)
    shown.page.clock.install()
    page = shown.open("runs")
    rows = page.locator("tbody tr")
    rows.first.wait_for()
    known = rows.count()
    ask(server, QUESTION, "second")
    button = page.get_by_role("button", name="1 new")
    comes_later(button)
    button.click()
    expect(rows).to_have_count(known + 1)


def test_a_list_is_walked_by_keyboard(server: ServerProcess, console: Callable[..., Console]) -> None:
    page = console(server).open("runs")
    page.locator("tbody tr").first.wait_for()
    for key, row in (("j", 1), ("j", 2), ("k", 1), ("k", 1)):
        page.keyboard.press(key)
        page.locator(f"tbody tr:nth-child({row}):focus-within").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/run_*")
    page.go_back()
    page.get_by_role("link", name="Agents").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/agents")
    page.get_by_role("link", name="account-agent").first.wait_for()
    page.keyboard.press("j")
    page.locator("tbody tr:nth-child(1):focus-within").wait_for()


#: As in a browser that shows a server of another machine over http.
KEEP_COPIED = """() => {
  Object.defineProperty(navigator, 'clipboard', { value: undefined });
  document.addEventListener('copy', () => (window.copied = document.activeElement.value));
}"""


def test_the_request_of_a_view_is_copied_without_https_and_runs_where_it_is_pasted(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    shown = console(server)
    shown.page.add_init_script(f"({KEEP_COPIED})()")
    page = shown.open("runs?agent=support-agent&limit=200&session=first")
    answers = []
    for name, program in (("Copy as curl", ["sh", "-c"]), ("as Python", [sys.executable, "-c"])):
        page.evaluate("() => { window.copied = ''; }")
        page.get_by_role("button", name=name).click()
        page.wait_for_function("() => window.copied")
        command = [*program, page.evaluate("() => window.copied")]
        answers.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = json.loads(answers[0])
    assert [run["session_id"] for run in found["runs"]] == ["first"]
    assert found == ast.literal_eval(answers[1])


def test_runs_are_filtered_by_time_cost_and_duration(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    page = console(server).open("runs")
    page.locator("tbody tr").first.wait_for()
    for label, none, some in (
        ("From", "2999-01-01T00:00", "2020-01-01T00:00"),
        ("To", "2020-01-01T00:00", "2999-01-01T00:00"),
        ("Cost from, US$", "1000", "0"),
        ("Takes from, s", "3600", "0.0001"),
    ):
        field = page.get_by_label(label, exact=True)
        field.fill(none)
        field.press("Tab")
        page.get_by_text("No run matches.").wait_for()
        field.fill(some)
        field.press("Tab")
        page.locator("tbody tr").first.wait_for()


def test_an_idle_page_asks_once_in_five_seconds(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    shown = console(server)
    shown.page.clock.install()
    page = shown.open("home")
    shown.settle()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for _ in range(4):
        page.clock.run_for(5_000)
        shown.settle()
    assert 1 <= len(asked) <= 4, asked


def test_the_description_of_the_routes_is_shown_and_asks_for_a_key(
    server_process: ServerFactory, console: Callable[..., Console], tmp_path: Path
) -> None:
    server = _guarded(server_process, tmp_path)
    page = console(server).page
    page.goto(f"{server.url}/docs")
    page.get_by_label("This server asks for a key").fill("wrong")
    page.keyboard.press("Enter")
    page.get_by_text("The server refuses this key.").wait_for()
    page.get_by_label("This server asks for a key").fill(_key(server, "agents:read"))
    page.keyboard.press("Enter")
    page.locator(".opblock-summary-path", has_text="/v1/agents/{name}/run").first.wait_for()


def test_a_server_with_keys_asks_for_one_and_shows_what_it_may(
    server_process: ServerFactory, console: Callable[..., Console], tmp_path: Path
) -> None:
    server = _guarded(server_process, tmp_path)
    secret = _key(server, "agents:read")
    page = console(server).open("agents")
    dialog = page.get_by_role("dialog", name="This server asks for a key")
    dialog.get_by_label("API key or token").fill(secret)
    dialog.get_by_role("button", name="Use this key").click()
    page.get_by_role("link", name="helper").wait_for()
    assert secret not in page.url
    places = page.get_by_role("navigation").get_by_role("link")
    expect(places).to_have_text(["astromesh", "Home", "Agents", "System"])
    page.wait_for_load_state("networkidle")
    page.goto(page.url.replace("#/agents", "#/system?tab=Audit"))
    page.get_by_role("alert").get_by_text("forbidden").wait_for()
    page.goto(page.url.replace("#/system?tab=Audit", "#/home"))
    page.locator(".card", has_text="Waits for a person").get_by_role("alert").wait_for()
    expect(page.get_by_text("Nothing waits.")).to_have_count(0)


def _guarded(server_process: ServerFactory, folder: Path) -> ServerProcess:
    write(folder, manifest("helper", model={"primary": {"provider": "embedded"}}))
    (folder / "runtime.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {auth: {mode: api_key}}\n"
    )
    return server_process(folder)


def _key(server: ServerProcess, scope: str) -> str:
    command = [PROGRAM, "keys", "create", "console", "--scope", scope, "--data", str(server.data)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


def test_the_documents_of_a_pipeline_are_listed_by_whose_they_are(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    documents = [{"id": "mine", "text": "A text.", "title": "My title"}]
    httpx.post(f"{server.url}/v1/rag/product-knowledge/documents", json={"documents": documents}, timeout=30)
    page = console(server).open("knowledge?pipeline=product-knowledge&query=password")  # asks the question
    page.get_by_role("link", name="account-and-password.md").first.click()
    page.locator("mark", has_text="password").wait_for()
    page.go_back()
    page.get_by_role("cell", name="My title").wait_for()
    page.get_by_role("region", name="Documents").get_by_role("link", name="mine").click()
    page.locator(".passage", has_text="A text.").wait_for()
    page.get_by_label("Documents of").select_option("sources")
    page.get_by_role("cell", name=".md").first.wait_for()
    expect(page.get_by_role("cell", name="My title")).to_have_count(0)


def test_faults_of_the_configuration_are_listed_with_their_places(
    server_process: ServerFactory, console: Callable[..., Console], tmp_path: Path
) -> None:
    folder = write(tmp_path, manifest("helper", model={"primary": {"provider": "embedded"}}))
    (folder / "agents" / "broken.agent.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: Agent\nmetadata: {name: broken}\nspec: {modell: {}}\n"
    )
    shown = console(server_process(folder))
    page = shown.open("system?tab=Configuration")
    page.get_by_role("link", name="agents/broken.agent.yaml:4:8").click()
    page.locator(".bad-line", has_text="modell").wait_for()
    page.get_by_text("unknown key `modell`. Did you mean `model`?").wait_for()
    assert shown.violations() == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert shown.wider_than(390) == []
