"""Takes a picture of every page of the console, for docs/console.md and the README.

    python scripts/console_screenshots.py [FOLDER]

It serves the sample agents, an agent that asks a person, and a workflow, and photographs the pages in the
browser of the tests, after `make venv`. FOLDER is `docs/images` unless it is named. Look at the pictures
before you commit them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx
from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import ended_task, fork, launched, recorded, with_evaluations  # noqa: E402
from tests.platform.astromesh import PROGRAM, ServerProcess  # noqa: E402

PICTURES = ROOT / "docs" / "images"
QUESTIONS = {
    "support-agent": (
        "How do I reset my password?",
        "Which plans are there?",
        "How do I invite a colleague?",
    ),
    "front-desk-agent": ("My invoice is wrong, what can I do?",),
    "debate-agent": ("Is two-step verification worth the trouble?",),
    "plan-agent": ("Plan the move of my team to a new workspace.",),
}
ARTICLE = "No article about passwords was found."
WORKFLOW = """version: 1
workflow: answers
nodes:
  - {id: question, kind: deterministic, role: start, default: true, context: none}
  - {id: answer, kind: agent, agent: support-agent, role: linear, context: none}
  - {id: end, kind: deterministic, role: exit, context: none}
edges: [{from: question, to: answer}, {from: answer, to: end}]
"""
#: name of the picture -> place, colour scheme, width, and the button that is pressed first
VIEWS = {
    "home": ("home", "light", 1280, ""),
    "chat": ("chat?agent=support-agent&session=ada", "light", 1280, ""),
    "runs": ("runs", "light", 1280, ""),
    "run": ("runs/{run}?step=7", "dark", 1280, ""),
    "fork": ("runs/{run}?step=5", "light", 1280, "Edit the result"),
    "compare": ("compare?a={run}&b={fork}", "light", 1280, ""),
    "approvals": ("approvals", "light", 1280, ""),
    "workflows": ("workflows", "light", 1280, ""),
    "task": ("tasks/{task}", "light", 1280, ""),
    "agents": ("agents", "light", 1280, ""),
    "graph": ("agents/debate-agent?tab=Graph", "light", 1280, ""),
    "playground": ("agents/support-agent?tab=Playground", "light", 1280, ""),
    "sessions": ("sessions?agent=support-agent", "light", 1280, ""),
    "session": ("sessions/support-agent/ada", "light", 1280, ""),
    "knowledge": ("knowledge?pipeline=product-knowledge&of=sources", "light", 1280, ""),
    "retrieval": ("knowledge?pipeline=product-knowledge&evaluation={retrieval}", "light", 1280, ""),
    "evaluations": ("evaluations", "light", 1280, ""),
    "system": ("system", "light", 1280, ""),
    "run-narrow": ("runs/{run}?step=7", "light", 390, ""),
}


def main() -> None:
    pictures = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        servers: list[ServerProcess] = []

        def serve(config: Path) -> ServerProcess:
            add_samples(config)
            servers.append(ServerProcess(Path(home), config, {"LLM_API_KEY": "sk-sample"}))
            servers[-1].start()
            return servers[-1]

        try:
            server = with_evaluations(Path(home), serve=serve)
            runs = [
                recorded(server, agent, question, "ada")
                for agent, questions in QUESTIONS.items()
                for question in questions
            ]
            names = {
                "run": runs[0],
                "fork": fork(server, runs[0], 5, {"tool_result": ARTICLE}),
                "task": ended_task(server, "answers", "How do I reset my password?"),
                "retrieval": [measured(Path(home), server, name) for name in ("tuning", "held-out")][-1],
            }
            for question in ("How do I export my data?", "Which plans are there?"):
                body = {"query": question, "session_id": "grace"}
                httpx.post(f"{server.url}/v1/agents/careful-agent/runs", json=body, timeout=30)
            with launched() as browser:
                for name, (place, scheme, width, button) in VIEWS.items():
                    page = browser.new_page(
                        viewport={"width": width, "height": 800},
                        color_scheme=scheme,  # type: ignore[arg-type]
                        locale="en-GB",
                        reduced_motion="reduce",
                    )
                    address = f"{server.url}/console/#/{place.format(**names)}"
                    photograph(page, address, pictures / f"{name}.png", button)
        finally:
            for server in servers:
                server.close()


def measured(home: Path, server: ServerProcess, name: str) -> str:
    """Measures the knowledge of the samples with a question set of the tests; returns the report's id."""
    lines = (ROOT / "tests" / "questions" / f"english-{name}.tsv").read_text().splitlines()
    prefix, questions = "\tknowledge/", home / f"paraphrases-{name}.tsv"
    asked = [line.replace(prefix, "\t") for line in lines if prefix in line]
    questions.write_text("\n".join(asked))
    words = ["rag", "eval", "product-knowledge", "--questions", str(questions), "--json"]
    places = ["--config", str(ROOT / "config"), "--data", str(server.data)]
    done = subprocess.run([PROGRAM, *words, *places], capture_output=True, text=True, check=True)
    report: str = json.loads(done.stdout)["evaluation_id"]
    return report


def add_samples(config: Path) -> None:
    """Adds an agent whose tool waits for a person, and a workflow."""
    agents, workflow = config / "agents", config / "workflows" / "answers"
    support = (agents / "support-agent.agent.yaml").read_text().replace("support-agent", "careful-agent")
    careful = support.replace("top_k: 5}", "top_k: 5, approval: required}")
    (agents / "careful-agent.agent.yaml").write_text(careful)
    workflow.mkdir()
    (workflow / "workflow.yaml").write_text(WORKFLOW)


def photograph(page: Page, address: str, picture: Path, button: str) -> None:
    page.goto(address)
    page.locator("main header h1").wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)  # diagrams are laid out behind the data
    if button:
        page.get_by_role("button", name=button).click()
    page.screenshot(path=picture)
    page.close()


if __name__ == "__main__":
    main()
