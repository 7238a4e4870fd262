"""Writes the recordings of examples/ anew: python scripts/record_examples.py [NAME …].

The answers are those of a script, not of a language model. Each is for the first message that contains its
text. Run it after a change of an example's prompts or tools; tests notice what is out of date.
"""

from __future__ import annotations

import runpy
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.graph.call_record import VERSION, call_json
from astromesh.plugins import Plugins
from astromesh.providers.base import Capabilities
from astromesh.runtime.engine import AgentRuntime
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.types import CompletionRequest, CompletionResult, Delta, ToolCall, Usage

EXAMPLES = Path(__file__).parents[1] / "examples"


@dataclass(frozen=True)
class Recorded:
    """A recording.

    Args:
        questions: Agent or workflow, what it is asked, and the decision if it is not `approve`.
        answers: A text that the last message has, and the answer to it.
    """

    file: str
    questions: tuple[tuple[Any, ...], ...]
    answers: tuple[tuple[str, str | ToolCall | list[ToolCall]], ...]


def call(tool: str, number: int = 1, /, **arguments: Any) -> ToolCall:
    return ToolCall(f"call-{tool}-{number}", tool, orjson.dumps(arguments).decode())


REFUND = "Please refund order 1001, it arrived broken. It was 20 euros."
HEATING = "Is a heat pump of 15,000 euros good for an old house? Power is 900 euros a year, for 15 years."
MENDED = '''"""Prices with tax."""


def with_tax(net: float, rate: float = 0.2) -> float:
    return net * (1 + rate)
'''
ORDER = (
    '{"customer": "Ada Lovelace", "deliver_on": "2027-03-01", "items": '
    '[{"name": "green tea", "quantity": 2}, {"name": "pot", "quantity": 1}]}'
)
RECORDINGS = (
    Recorded(
        "support_bot/recordings/support.json",
        (
            ("support", "Who pays the shipping of a return?"),
            ("support", "Where is order 1002?"),
            ("support", REFUND),
            ("support", REFUND, "deny"),
        ),
        (
            ("Who pays the shipping", call("search_handbook", query="shipping costs of a return")),
            (
                "Shipping costs of a return",
                "We pay the shipping if the item is damaged; otherwise you do (returns.md).",
            ),
            ("Where is order 1002?", call("order_status", order="1002")),
            ("on its way", "Order 1002 is on its way."),
            ("Please refund order 1001", call("refund", order="1001", amount=20)),
            ("were refunded", "I have refunded 20 euros for order 1001."),
            ("denied", "I may not refund this order."),
        ),
    ),
    Recorded(
        "research_team/recordings/team.json",
        (("lead", HEATING),),
        (
            (
                "Is a heat pump",
                [
                    call("researcher", task="What does a heat pump need in an old house?"),
                    call("accountant", task="What do 15,000 euros and 900 a year cost in 15 years?"),
                ],
            ),
            ("What does a heat pump need", call("search_documents", query="heat pump in an old house")),
            ("large radiators", "It needs large radiators or at most 55 degrees (heat-pumps.md)."),
            ("What do 15,000 euros", call("total_cost", purchase=15000, per_year=900, years=15)),
            ("28500", "Altogether it costs 28,500 euros in 15 years."),
            ("", "It is, if its radiators are large (heat-pumps.md). In 15 years it costs 28,500 euros."),
        ),
    ),
    Recorded(
        "invoice_approval/recordings/invoices.json",
        (
            ("invoices", {"mail": "Invoice A-1 for paper: please pay 20 euros."}),
            ("invoices", {"mail": "Invoice A-2 for a new roof: please pay 5000 euros."}),
        ),
        (("A-1", '{"number": "A-1", "amount": 20}'), ("A-2", '{"number": "A-2", "amount": 5000}')),
    ),
    Recorded(
        "slack_bot/recordings/desk.json",
        (("desk", "We are ten. Which room is free?"), ("desk", "Please book Grace.")),
        (
            ("We are ten", call("free_rooms", people=10)),
            ('["Grace"]', "Grace is free."),
            ("Please book Grace", call("book", room="Grace")),
            ("is booked", "Grace is yours for the next hour."),
        ),
    ),
    Recorded(
        "coding_helper/recordings/coder.json",
        (("coder", "The tests fail. Please mend it."),),
        (
            ("The tests fail", call("run_tests")),
            ("FAILED", call("read_file", name="prices.py")),
            ("net * rate", call("write_file", name="prices.py", text=MENDED)),
            ("is written", call("run_tests", 2)),
            ("OK", "`with_tax` returned the tax alone; it now adds it to the net price, and the tests pass."),
        ),
    ),
    Recorded(
        "batch/recordings/sorter.json",
        (
            ("sorter", "I was charged twice!"),
            ("sorter", "When does my parcel come?"),
            ("sorter", "Do you sell umbrellas?"),
        ),
        (
            ("charged twice", '{"team": "billing", "urgency": 3}'),
            ("parcel", '{"team": "delivery", "urgency": 2}'),
            ("umbrellas", '{"team": "other", "urgency": 1}'),
        ),
    ),
    Recorded(
        "extraction/recordings/reader.json",
        (("reader", (EXAMPLES / "extraction" / "mail.txt").read_text()),),
        (
            # the first answer does not fit the schema: the model is told, and mends it
            ("two boxes", '{"customer": "Ada Lovelace", "deliver_on": "2027-03-01", "items": []}'),
            ("", ORDER),
        ),
    ),
    Recorded(
        "evaluation_in_ci/recordings/tutor.json",
        (("tutor", "What is 17 times 23?"), ("tutor", "Write a poem about the sea.")),
        (
            ("17 times 23", call("calculate", a=17, operation="times", b=23)),
            ("391", "17 times 23 is 391."),
            ("poem", "I only help with mathematics."),
        ),
    ),
    Recorded(
        "web_page/recordings/guide.json",
        (("guide", "What is the oldest piece here?"),),
        (("oldest", "The oldest piece is a clay bowl in room 2, about 7,000 years old."),),
    ),
    Recorded(
        "schedule_with_callback/recordings/digest.json",
        (("digest", "What was sold?"),),
        (("What was sold?", call("sales")), ("pots", "40 teas and 3 pots were sold.")),
    ),
)


class Script:
    """A provider that answers by the last message, and keeps its calls."""

    capabilities = Capabilities(quality=0.0, language_model=False)
    name, provider, model = "recording/replay", "recording", "replay"

    def __init__(self, recorded: Recorded) -> None:
        self._recorded, self.calls = recorded, list[Any]()

    async def complete(self, request: CompletionRequest) -> CompletionResult:
        last = request.messages[-1].content
        answer = next(answer for text, answer in self._recorded.answers if text in last)
        tools = (
            (answer,) if isinstance(answer, ToolCall) else () if isinstance(answer, str) else tuple(answer)
        )
        result = CompletionResult(
            content=answer if isinstance(answer, str) else "", tool_calls=tools, usage=Usage(0, 0),
            provider=self.provider, model=self.model, finish_reason="tool_calls" if tools else "stop",
        )  # fmt: skip
        self.calls.append(call_json(request, result))
        return result

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta | CompletionResult, None]:
        result = await self.complete(request)
        if result.content:
            yield Delta(result.content)
        yield result

    def estimated_cost(self, request: CompletionRequest) -> float:
        return 0.0

    async def ping(self) -> None: ...

    async def close(self) -> None: ...


@contextmanager
def copy_of(example: str) -> Iterator[Path]:
    """A copy of an example, so that its tools change no file of it."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(shutil.copytree(EXAMPLES / example, Path(folder) / example))


def record(recorded: Recorded) -> None:
    """Asks the questions of a recording and writes it."""
    script = Script(recorded)
    plugins = Plugins({"providers": {"recording": plugin_of(script)}})
    env = {"PYTHON": sys.executable, "CALLBACK_SECRET": "whsec_" + "MDEyMzQ1Njc4OWFiY2RlZg=="}
    with copy_of(recorded.file.split("/")[0]) as folder:
        sys.path.insert(0, str(folder))
        runtime = AgentRuntime(folder / "config", data_dir=folder / "data", plugins=plugins, env=env)
        with TestClient(create_app(runtime)) as client:
            for question in recorded.questions:
                ask(client, *question)
    file = EXAMPLES / recorded.file
    file.parent.mkdir(exist_ok=True)
    content = {"version": VERSION, "calls": script.calls}
    file.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def ask(client: TestClient, name: str, question: Any, decision: str = "approve") -> None:
    """Runs an agent to its end, or a workflow until it asks."""
    if isinstance(question, dict):
        made = client.post(f"/v1/workflows/{name}/runs", json={"input": question})
        path = f"/v1/tasks/{made.raise_for_status().json()['task_id']}"
    else:
        body = {"query": question, "session_id": str(time.monotonic_ns())}
        made = client.post(f"/v1/agents/{name}/runs", json=body)
        path = f"/v1/runs/{made.raise_for_status().json()['run_id']}"
    while (state := client.get(path).json())["finished_at"] is None and not isinstance(question, dict):
        if state["status"] == "waiting":
            client.post(f"{path}/resume", json={"decision": decision})
        time.sleep(0.05)
    while isinstance(question, dict) and state["finished_at"] is None and not state["waiting_for"]:
        state = client.get(path).json()
        time.sleep(0.05)
    print(name, state["status"], str(state.get("result") or state.get("output") or state.get("error"))[:300])


def record_the_graph() -> None:
    """The program of typed_graph records its model by itself."""
    file = EXAMPLES / "typed_graph" / "recordings" / "writer.json"
    file.unlink(missing_ok=True)
    program = runpy.run_path(str(EXAMPLES / "typed_graph" / "review.py"))
    script = ScriptedProvider(
        "A gentle green tea from the hills around Kyoto, with the taste of spring.",
        "Gentle green tea from Kyoto.",
    )
    with program["writer"].override(model=script):
        print("graph", program["label"]("green tea from Kyoto", 40))


def main(names: Sequence[str]) -> None:
    for recorded in RECORDINGS:
        if not names or recorded.file.split("/")[0] in names:
            record(recorded)
    if not names or "typed_graph" in names:
        record_the_graph()


if __name__ == "__main__":
    main(sys.argv[1:])
