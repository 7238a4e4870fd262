"""The chat in a real browser: edit, retry, stop, and streams that survive a reload and a crash."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.conftest import QUESTION, Console, fork, recorded
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.platform.astromesh import ServerProcess
from tests.platform.model import MockModel

MODELS = {
    "slow": "mock+tokens=400+gap=40",
    "short": "mock+tokens=60+gap=40",
    "fast": "mock+tokens=6000+gap=1",
}
COUNT_FRAMES = """() => {
  window.drawn = 0;
  const draw = () => { window.drawn++; requestAnimationFrame(draw); };
  draw();
}"""
MEMORY = {"conversational": {"backend": "sqlite", "strategy": "sliding_window", "max_turns": 20}}


@pytest.fixture
def streaming(server_process: ServerFactory, mock_llm: MockModel, tmp_path: Path) -> ServerProcess:
    """Agents whose model streams slowly, shortly, or a thousand tokens per second."""
    primary = {"provider": "openai", "endpoint": mock_llm.url, "api_key": "sk-test", "timeout": 60}
    agents = [
        manifest(name, model={"primary": {**primary, "model": model}}, memory=MEMORY)
        for name, model in MODELS.items()
    ]
    return server_process(write(tmp_path, *agents))


def asked(shown: Console, agent: str, question: str = "Tell me a story.") -> Page:
    """Sends a message, and returns when its answer has begun."""
    page = shown.open(f"chat?agent={agent}")
    page.get_by_label(f"Message to {agent}").fill(question)
    page.keyboard.press("Enter")
    page.locator(".turn .markdown", has_text="fox").wait_for()
    return page


def newest(server: ServerProcess) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{server.url}/v1/runs?limit=1", timeout=60).json()["runs"][0]
    return found


def finished(page: Page) -> str:
    """The text of the only answer when it has been made."""
    page.locator(".cursor").wait_for(state="detached", timeout=60_000)
    page.get_by_role("button", name="Stop").wait_for(state="detached")
    return page.locator(".turn .markdown").inner_text()


def test_a_message_is_edited_and_the_conversation_goes_on_beside_the_old_one(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    recorded(server, query="Which plans are there?", session="edited")
    recorded(server, session="edited")
    page = console(server).open("chat?agent=support-agent&session=edited")
    page.locator(".turn.user").nth(1).wait_for()
    page.get_by_role("button", name="Edit").nth(1).click()
    page.get_by_label("The edited message").fill("How do I invite a colleague?")
    page.get_by_role("button", name="Send from here").click()
    page.locator(".turn .markdown", has_text="Invite").wait_for()
    expect(page.locator(".turn.user")).to_have_text(
        [
            "Which plans are there?",
            "How do I invite a colleague?",
        ]
    )
    page.go_back()
    page.locator(".turn.user", has_text=QUESTION).wait_for()
    expect(page.locator(".turn.user")).to_have_count(2)


def test_a_message_is_tried_again(server: ServerProcess, console: Callable[..., Console]) -> None:
    fork(server, recorded(server), 5, {"tool_result": "No article."})  # no part of the conversation
    page = console(server).open("chat?agent=support-agent&session=recorded")
    page.locator(".turn .markdown", has_text="Forgot password?").wait_for()
    page.wait_for_load_state("networkidle")
    expect(page.get_by_role("button", name="Ask again")).to_have_count(0)
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url("**session=run_*")
    page.locator(".turn .markdown", has_text="Forgot password?").wait_for()
    expect(page.locator(".turn.user")).to_have_text([QUESTION])


def test_an_answer_is_stopped_by_escape_and_its_message_edited(
    streaming: ServerProcess, console: Callable[..., Console]
) -> None:
    page = asked(console(streaming), "slow")
    page.locator(".diagram .lit", has_text="react").wait_for()  # the graph shows where the run is
    page.keyboard.press("Escape")
    page.get_by_text("Stopped.").wait_for()
    page.get_by_role("row", name="Model").get_by_text("cancelled").wait_for()
    assert newest(streaming)["status"] == "cancelled"
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("The edited message").fill("Another story.")
    page.get_by_role("button", name="Send from here").click()
    page.locator(".turn.user", has_text="Another story.").wait_for()


def test_a_question_is_decided_in_place_with_a_note(
    server_process: ServerFactory, mock_llm: MockModel, tmp_path: Path, console: Callable[..., Console]
) -> None:
    primary = {"provider": "openai", "endpoint": mock_llm.url, "api_key": "sk-test", "model": "mock"}
    function = "tests.integration.sample_tools:lookup"
    tool = {"name": "now", "type": "internal", "function": function, "approval": "required"}
    server = server_process(write(tmp_path, manifest("careful", model={"primary": primary}, tools=[tool])))
    call = {"tool_calls": [{"name": "now", "arguments": {"query": "x"}}]}
    mock_llm.script(call, {"text": "I did not look it up."}, call)
    page = console(server).open("chat?agent=careful")
    page.get_by_label("Message to careful").fill("Look it up.")
    page.keyboard.press("Enter")
    question = page.get_by_role("region", name="Question of careful")
    expect(page.locator(".call", has_text="now")).not_to_contain_text("running")
    question.get_by_label("Note").fill("Not on Sundays.")
    question.get_by_role("button", name="Deny").click()
    page.locator(".turn .markdown", has_text="I did not look it up.").wait_for()
    page.reload()  # the agent has no memory: its answer is shown from the events of the run
    page.locator(".turn .markdown", has_text="I did not look it up.").wait_for()
    expect(page.locator(".turn.user")).to_have_text("Look it up.")
    assert "Not on Sundays." in mock_llm.requests()[-1]["messages"][-1]["content"]
    assert newest(server)["status"] == "completed"
    page.get_by_label("Message to careful").fill("Once more.")
    page.keyboard.press("Enter")
    question.wait_for()
    page.keyboard.press("Escape")
    expect(page.get_by_role("row", name="now cancelled")).to_have_count(2)  # neither the tool nor the person


#: how far the end of the conversation is below what is seen
BELOW = """() => {
  const box = document.querySelector('.turns');
  return Math.round(box.scrollHeight - box.clientHeight - box.scrollTop);
}"""


def test_an_answer_is_followed_to_its_end_unless_the_reader_has_scrolled_up(
    streaming: ServerProcess, console: Callable[..., Console]
) -> None:
    page = asked(console(streaming), "slow", "Tell me a story. " * 200)
    page.set_viewport_size({"width": 1400, "height": 400})
    page.wait_for_function(f"() => ({BELOW})() === 0")
    text = page.locator(".turn .markdown").inner_text()
    expect(page.locator(".turn .markdown")).not_to_have_text(text)
    assert page.evaluate(BELOW) == 0
    page.evaluate("() => { document.querySelector('.turns').scrollTop = 0; }")
    text = page.locator(".turn .markdown").inner_text()
    expect(page.locator(".turn .markdown")).not_to_have_text(text)
    assert page.evaluate("() => document.querySelector('.turns').scrollTop") == 0


def test_a_stored_conversation_opens_at_its_end_with_the_sources_of_its_answer(
    server: ServerProcess, console: Callable[..., Console]
) -> None:
    for _ in range(3):
        recorded(server, session="long")
    shown = console(server)
    page = shown.open("chat?agent=support-agent&session=long")
    page.get_by_label("Sources").nth(2).wait_for()
    shown.settle()
    page.wait_for_function(f"() => ({BELOW})() === 0")
    expect(page.get_by_label("Sources").last).to_be_in_viewport(ratio=1)


def test_an_agent_with_missing_tools_can_be_asked_and_one_with_faults_is_named(
    server_process: ServerFactory, tmp_path: Path, console: Callable[..., Console]
) -> None:
    model = {"primary": {"provider": "embedded"}}
    gone = {"name": "gone", "type": "mcp", "server": "gone"}
    folder = write(tmp_path, manifest("first", model=model), manifest("partly", model=model, tools=[gone]))
    write(folder, manifest("faulty", modell=model))
    servers = "{gone: {transport: stdio, command: none}}"
    text = f"apiVersion: astromesh/v1\nkind: MCPConfig\nspec: {{servers: {servers}}}\n"
    (folder / "mcp.yaml").write_text(text)
    shown = console(server_process(folder))
    page = shown.open("chat")
    agents = page.get_by_label("Agent", exact=True)
    expect(agents.locator("option")).to_have_text(["first", "partly"])
    shown.move("chat?agent=faulty")
    expect(agents).to_have_value("faulty")
    shown.move("agents")
    for name, fault in (("partly", "'gone'"), ("faulty", "faulty.agent.yaml:")):
        row = page.get_by_role("row", name=name)
        row.get_by_text(fault).wait_for()
        expect(row.get_by_role("link", name="Chat")).to_have_count(int(name == "partly"))
    page.get_by_label("contains").fill("undefined")
    page.get_by_text("No agent matches.").wait_for()
    shown.faults.clear()  # a browser logs that the faulty one has no graph and no sessions


def test_a_reload_in_the_middle_of_an_answer_loses_nothing(
    streaming: ServerProcess, console: Callable[..., Console]
) -> None:
    page = asked(console(streaming), "short")
    page.reload()
    page.locator(".turn .markdown", has_text="fox").wait_for()
    expect(page.locator(".turn.user")).to_have_text(["Tell me a story."])
    assert_shows_the_answer(page, streaming)


def test_an_answer_goes_on_when_the_server_is_killed_and_starts_again(
    streaming: ServerProcess, console: Callable[..., Console]
) -> None:
    shown = console(streaming)
    page = asked(shown, "short")
    streaming.kill()
    page.get_by_text("The server does not answer.").first.wait_for()
    streaming.start()
    assert_shows_the_answer(page, streaming)
    page = shown.open(f"runs/{newest(streaming)['run_id']}")
    page.locator(".step", has_text="Output rules").wait_for()
    numbers = page.locator(".step .name i").all_inner_texts()
    assert len(numbers) == len(set(numbers)) > 3
    shown.faults.clear()  # a browser logs each request that a dead server has not answered


def assert_shows_the_answer(page: Page, server: ServerProcess) -> None:
    text = finished(page)
    result = newest(server)["result"]
    assert isinstance(result, dict)
    assert text.split() == result["response"].split()
    expect(page.locator(".turn")).to_have_count(2)


def test_a_thousand_tokens_a_second_leave_the_page_free(
    streaming: ServerProcess, console: Callable[..., Console]
) -> None:
    page = asked(console(streaming), "fast")
    page.evaluate(COUNT_FRAMES)
    box = page.get_by_label("Message to fast")
    for n in range(5):  # the page takes what is typed, and draws, while the answer grows
        drawn = page.evaluate("() => window.drawn")
        box.press_sequentially("abc")
        assert box.input_value() == "abc" * (n + 1)
        page.wait_for_function("(drawn) => window.drawn > drawn + 3", arg=drawn)
    expect(page.locator(".cursor")).to_have_count(1)
    assert_shows_the_answer(page, streaming)


def test_files_go_with_a_message(
    streaming: ServerProcess, mock_llm: MockModel, console: Callable[..., Console]
) -> None:
    shown = console(streaming)
    page = shown.open("chat?agent=short")
    files = [
        FilePayload(name=name, mimeType="text/csv", buffer=b"month,sales\nMay,12\n")
        for name in ("table.csv", "other.csv")
    ]
    page.get_by_label("Attach files").set_input_files(files)
    page.get_by_role("button", name="Remove other.csv").click()
    assert shown.violations() == []
    page.get_by_label("Message to short").fill("What does it say?")
    page.keyboard.press("Enter")
    page.locator(".turn .markdown", has_text="fox").wait_for()
    page.locator(".asked", has_text="table.csv").wait_for()
    request = str(mock_llm.requests()[-1]["messages"][-1])
    assert "May,12" in request and "other.csv" not in request
