"""Takes the pictures of the console that docs/console.md and the README show: `make venv`, then run this.

It serves the sample agents, asks them a few questions, and photographs pages in the browser of the tests.
Look at the pictures before you commit them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.browser.conftest import fork, launched, recorded, with_evaluations  # noqa: E402
from tests.platform.astromesh import ServerProcess  # noqa: E402

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
#: name of the picture -> place, colour scheme, width, and the button that is pressed first
VIEWS = {
    "home": ("home", "light", 1280, ""),
    "chat": ("chat?agent=support-agent&session=ada", "light", 1280, ""),
    "run": ("runs/{run}?step=7", "dark", 1280, ""),
    "fork": ("runs/{run}?step=5", "light", 1280, "Edit the result"),
    "compare": ("compare?a={run}&b={fork}", "light", 1280, ""),
    "evaluations": ("evaluations", "light", 1280, ""),
    "graph": ("agents/debate-agent?tab=Graph", "light", 1280, ""),
    "run-narrow": ("runs/{run}?step=7", "light", 390, ""),
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        servers: list[ServerProcess] = []

        def serve(config: Path) -> ServerProcess:
            servers.append(ServerProcess(Path(home), config))
            servers[-1].start()
            return servers[-1]

        try:
            server = with_evaluations(Path(home), serve=serve)
            runs = [
                recorded(server, agent, question, "ada")
                for agent, questions in QUESTIONS.items()
                for question in questions
            ]
            names = {"run": runs[0], "fork": fork(server, runs[0], 5, {"tool_result": ARTICLE})}
            with launched() as browser:
                for name, (place, scheme, width, button) in VIEWS.items():
                    page = browser.new_page(
                        viewport={"width": width, "height": 800},
                        color_scheme=scheme,  # type: ignore[arg-type]
                        locale="en-GB",
                        reduced_motion="reduce",
                    )
                    photograph(page, f"{server.url}/console/#/{place.format(**names)}", name, button)
        finally:
            for server in servers:
                server.close()


def photograph(page: Page, address: str, name: str, button: str) -> None:
    page.goto(address)
    page.locator("main header h1").wait_for()
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)  # diagrams are laid out behind the data
    if button:
        page.get_by_role("button", name=button).click()
    page.screenshot(path=PICTURES / f"{name}.png")
    page.close()


if __name__ == "__main__":
    main()
