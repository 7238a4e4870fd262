"""The playground of an agent in a real browser: another system message or model, without saving."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.browser.conftest import QUESTION, Console
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.platform.model import MockModel


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1600, "dark")])
def test_another_system_message_and_model_are_tried_without_saving(
    server_process: ServerFactory,
    mock_llm: MockModel,
    tmp_path: Path,
    console: Callable[..., Console],
    width: int,
    scheme: str,
) -> None:
    primary = {
        "provider": "openai",
        "endpoint": mock_llm.url,
        "api_key": "sk-test",
        "model": "mock+say=As_it_is",
    }
    server = server_process(write(tmp_path, manifest("helper", model={"primary": primary})))
    shown = console(server, width=width, scheme=scheme)
    page = shown.open("agents/helper?tab=Playground")
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_role("button", name="Ask").click()
    page.get_by_role("region", name="The agent as it is").get_by_text("As it is").last.wait_for()
    page.get_by_label("System message").fill("Answer in one word.")
    page.get_by_role("button", name="Try this system message").click()
    page.get_by_role("region", name="Another system message").wait_for()
    assert mock_llm.requests()[-1]["messages"][0]["content"] == "Answer in one word."
    page.get_by_label("Model: a name").fill("mock+say=By_another")
    page.get_by_role("button", name="Try this model").click()
    page.get_by_role("region", name="Model mock+say=By_another").get_by_text("By another").last.wait_for()
    assert shown.violations() == []
    inner = width if width < 720 else width - 200
    assert shown.wider_than(inner) == []
    sessions = httpx.get(f"{server.url}/v1/agents/helper/sessions", timeout=60).json()["sessions"]
    assert len(sessions) <= 1  # that of the first question, if the agent has a memory
    page.get_by_role("link", name="Compare").first.click()
    page.locator(".row-of-steps.first").wait_for()
