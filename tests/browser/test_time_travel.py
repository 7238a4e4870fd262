"""Going back in a run, in a real browser: edit a step in place and run on, replay, compare."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import ROOT, Console, ask, ended_task, fork, recorded
from tests.conftest import ServerFactory
from tests.platform.astromesh import ServerProcess

EDITED = "No article was found."
LABELS = {
    "query": "Edit the message",
    "system": "Edit the system message",
    "message": "Add a message",
    "tool_result": "Edit the result",
    "state": "Change the state",
    "model": "Another model",
    "manifest": "Present manifest",
}
WORKFLOW = """version: 1
workflow: answers
nodes:
  - {id: s, kind: deterministic, role: start, default: true, context: none}
  - {id: answer, kind: agent, agent: support-agent, role: linear, context: none}
  - {id: e, kind: deterministic, role: exit, context: none}
edges: [{from: s, to: answer}, {from: answer, to: e}]
"""


def offered(page: Page, labels: set[str]) -> set[str]:
    """The edits that a page has buttons for."""
    return labels & {*page.locator("section[aria-label='The chosen step'] button").all_inner_texts()}


def test_a_result_is_edited_in_place_and_the_run_goes_on_and_is_compared(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    run = recorded(server)
    page = console(server).open(f"runs/{run}?step=5")
    page.get_by_text("Steps 1 to 4 are read from the recording").wait_for()
    page.get_by_role("button", name="Edit the result").click()
    field = page.get_by_label("Edit the result")
    assert "account-and-password.md" in field.input_value()
    field.fill(EDITED)
    page.get_by_role("button", name="Run on from here").click()
    page.get_by_text("Fork at step 5, tool_result edited").wait_for()
    page.locator(".msg pre", has_text=EDITED).first.wait_for()
    fork_id = page.url.rsplit("/", 1)[-1].split("?")[0]
    expect(page.locator(".step", has_text="from the recording")).to_have_count(4)
    page.get_by_role("link", name="Compare").click()
    first = page.locator(".row-of-steps.first")
    first.locator("ins", has_text="No").wait_for()
    assert "search_knowledge_base" in first.locator("button").inner_text()
    expect(page.locator(".cmp > div")).to_have_count(2)
    assert (
        httpx.get(f"{server.url}/v1/runs/{fork_id}", timeout=60).json()["forked_from"]["run_id"] == run
    )  # what is shown is so


def test_each_step_offers_the_edits_that_it_names(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    run, shown = recorded(server), console(server)
    for step in httpx.get(f"{server.url}/v1/runs/{run}/steps", timeout=60).json()["steps"]:
        page = shown.open(f"runs/{run}?step={step['step']}")
        page.get_by_role("region", name="Fork").wait_for()
        output = "Edit the output" if step["kind"] == "node" else "Edit the answer"
        wanted = {LABELS.get(kind, output) for kind in step["editable"]}
        assert offered(page, {*LABELS.values(), "Edit the output", "Edit the answer"}) == wanted


def test_a_fork_that_the_server_refuses_keeps_what_was_written(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    page = console(server).open(f"runs/{recorded(server)}?step=4")
    page.get_by_role("region", name="Fork").wait_for()
    page.keyboard.press("f")  # the first edit that the step names
    page.get_by_label("Edit the answer").fill('{"tool_calls": "none"}')
    page.get_by_role("button", name="Run on from here").click()
    page.get_by_role("region", name="Fork").get_by_role("alert").wait_for()
    assert page.get_by_label("Edit the answer").input_value() == '{"tool_calls": "none"}'


def test_a_replay_is_identical(server: ServerProcess, console: Callable[..., Console]) -> None:
    page = console(server).open(f"runs/{recorded(server)}")
    page.get_by_role("button", name="Replay").click()
    page.get_by_role("region", name="Replay").get_by_text("identical").wait_for()


def test_a_replay_that_differs_shows_both_values(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    shown = console(server)
    divergence = {
        "step": 4, "path": "react", "kind": "model", "name": "assistant", "at": "messages[0].content",
        "recorded": "Today is Monday.", "replayed": "Today is <b>Friday</b>.",
    }  # fmt: skip
    found = {"run_id": "run", "reproduced": False, "compared": 2, "divergence": divergence}

    def differs(route: Route) -> None:  # what another version of astromesh might answer
        route.fulfill(status=200, content_type="application/json", body=json.dumps(found))

    shown.page.route("**/replay", differs)
    page = shown.open(f"runs/{recorded(server)}")
    page.get_by_role("button", name="Replay").click()
    replay = page.get_by_role("region", name="Replay")
    replay.locator("del", has_text="Monday").wait_for()
    assert "messages[0].content" in replay.inner_text()
    expect(replay.locator("ins")).to_have_text(["<b>Friday</b>"])


def test_a_run_that_is_not_recorded_says_which_key_records_the_next_one(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    page = console(server).open(f"runs/{ask(server, 'Hello', 'plain')}")
    page.get_by_text("recording: true", exact=False).first.wait_for()
    expect(page.locator("button", has_text="Replay")).to_have_count(0)


def test_three_runs_stand_side_by_side_and_differences_are_walked_by_keyboard(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    run = recorded(server)
    b, c = (fork(server, run, 5, {"tool_result": text}) for text in ("One.", "Two."))
    page = console(server).open(f"compare?a={run}&b={b}&c={c}")
    page.locator(".row-of-steps.first .diff").nth(3).wait_for()
    expect(page.locator(".cmp.three > div")).to_have_count(3)
    assert page.locator(".row-of-steps.same").first.inner_text().startswith("4 steps · the same")
    page.keyboard.press("n")
    page.locator(".row-of-steps.on button[aria-expanded=true]").wait_for()


def test_a_task_is_forked_with_the_edits_that_its_steps_name(
    server_process: ServerFactory, console: Callable[..., Console], tmp_path: Path
) -> None:
    """Stages, and the steps of the run of an agent in one of them."""
    config = tmp_path / "config"
    shutil.copytree(ROOT / "config", config)
    (config / "workflows" / "answers").mkdir()
    (config / "workflows" / "answers" / "workflow.yaml").write_text(WORKFLOW)
    (config / "workflows" / "held").mkdir()
    held = WORKFLOW.replace("workflow: answers", "workflow: held") + "task: {pause_before: [e]}\n"
    (config / "workflows" / "held" / "workflow.yaml").write_text(held)
    server = server_process(config)
    task = ended_task(server, "answers", "How do I reset my password?")
    steps = httpx.get(f"{server.url}/v1/tasks/{task}/steps", timeout=60).json()["steps"]
    assert {"stage", "model", "tool", "prompt"} <= {step["kind"] for step in steps}
    shown = console(server)
    stages = shown.open(f"tasks/{task}").get_by_role("region", name="The workflow").locator(".node.done")
    expect(stages).to_have_count(3)
    shown.page.get_by_role("button", name="Replay the stage answer").click()
    shown.page.get_by_text("scratch").wait_for()
    started = httpx.post(
        f"{server.url}/v1/workflows/held/runs", json={"input": "Which plans are there?"}, timeout=60
    )
    page = shown.open(f"tasks/{started.json()['task_id']}")
    expect(page.locator(".node.wait")).to_have_count(1)
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".node.done")).to_have_count(3)
    of_stages = {"query": "Edit the input", "state": "Change values of the output"}
    for step in steps:
        page = shown.open(f"tasks/{task}?tab=Steps&step={step['step']}")
        page.get_by_role("region", name="Fork").wait_for()
        output = "Edit the answer" if step["kind"] == "model" else "Edit the output"
        labels = {**LABELS, "output": output, **(of_stages if step["kind"] == "stage" else {})}
        assert offered(page, {*labels.values()}) == {labels[kind] for kind in step["editable"]}, step
    last = steps[-2]["step"]
    page = shown.open(f"tasks/{task}?tab=Steps&step={last}")
    page.get_by_role("button", name="Edit the output").click()
    page.get_by_label("Edit the output").fill(EDITED)
    page.get_by_role("button", name="Run on from here").click()
    page.get_by_text(f"Fork at step {last}, output edited").wait_for()
    made = page.url.rsplit("/", 1)[-1].split("?")[0]
    assert httpx.get(f"{server.url}/v1/tasks/{made}", timeout=60).json()["forked_from"]["task_id"] == task
