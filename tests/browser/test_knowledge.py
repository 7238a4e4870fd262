"""Knowledge and memory in a real browser: how well a pipeline finds, and facts about a person."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import httpx
from playwright.sync_api import expect

from astromesh.evaluation.retrieval import AskedQuestion, RetrievalReport, store_retrieval
from tests.browser.conftest import Console
from tests.conftest import ServerFactory
from tests.integration.agents_folder import manifest, write
from tests.integration.knowledge.rag_files import pipeline_file
from tests.platform.astromesh import ServerProcess

ASKED = (
    AskedQuestion("How long?", "tea.md · Green tea", 1, "tea.md · Green tea", 0.9, 2.0, True),
    AskedQuestion("How hot?", "tea.md · Green tea", 3, "milk.md · Froth", 0.4, 2.5, False),
)


def served(server_process: ServerFactory, config: Path) -> ServerProcess:
    memory = {"conversational": {"backend": "sqlite"}, "semantic": {"backend": "sqlite", "facts": "rules"}}
    write(config, manifest("helper", model={"primary": {"provider": "embedded"}}, memory=memory))
    pipeline_file(config, "tea")
    server = server_process(config)
    for number in (1, 2):
        report = RetrievalReport(
            evaluation_id=f"rag_{number}", pipeline="tea", questions=f"set-{number}.tsv", asked=ASKED,
            started_at=1e9 + number,
            measures={"questions": 2, "hit@1": number / 4, "p50_ms": 2, "p95_ms": 2.5},
        )  # fmt: skip
        store_retrieval(server.data, report)
    return server


def test_reports_of_a_pipeline_and_facts_about_a_person_are_shown(
    server_process: ServerFactory, tmp_path: Path, console: Callable[..., Console]
) -> None:
    server = served(server_process, tmp_path / "config")
    shown = console(server, width=1600)
    page = shown.open("knowledge?pipeline=tea")
    rows = page.get_by_role("region", name="Evaluations of the pipeline").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("0.500")
    rows.first.get_by_role("link").click()
    questions = page.get_by_role("region", name="Questions of the evaluation").locator("tbody tr")
    expect(questions.first).to_contain_text("milk.md · Froth")
    expect(questions).to_have_count(2)
    shown.settle()
    assert shown.violations() == []

    body = {"query": "I live in Oslo.", "session_id": "s"}
    assert httpx.post(f"{server.url}/v1/agents/helper/run", json=body, timeout=30).status_code == 200
    assert (
        "Oslo" in httpx.get(f"{server.url}/v1/principals/anonymous/data", timeout=30).text
    )  # waits for the fact
    shown.move("sessions/helper/s")
    page.get_by_role("button", name="Show the facts").click()
    page.get_by_text("The user lives in Oslo.").wait_for()
    shown.settle()
    assert shown.violations() == []
    page.get_by_role("button", name="Erase", exact=True).click()
    page.get_by_role("group", name="Erase this fact").get_by_role("button", name="Erase").click()
    page.get_by_text("None. Agents with").wait_for()

    # the pipelines of a server that is not ready, e.g. because a provider does not answer
    checks = {"provider:openai": "provider_unavailable", "store:rag:tea": "ok"}
    not_ready = {"status": "not_ready", "checks": checks}
    page.route("**/health/ready", lambda route: route.fulfill(status=503, json=not_ready))
    with page.expect_console_message(lambda message: "503" in message.text):
        shown.open("knowledge")
    expect(page.get_by_role("combobox", name="Pipeline")).to_have_value("tea")
    shown.settle()
    page.close()
    shown.faults[:] = [one for one in shown.faults if "503" not in one]  # which the browser has logged
