"""The deterministic operations of the workflow: each is called with (input, context, tools)."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

Json = dict[str, Any]

_LAW = {
    "liability": "A limitation of liability does not cover intent and gross negligence.",
    "termination": "A contract of indefinite term can be terminated for good cause.",
    "confidential": "Trade secrets are protected where reasonable measures keep them secret.",
}


async def normalize(input: Json, context: Any, tools: Any) -> Json:
    """The contract with its whitespace in order."""
    return {"text": re.sub(r"[ \t]+", " ", input["text"]).strip()}


async def split_clauses(input: Json, context: Any, tools: Any) -> Json:
    """A subtask for each numbered clause, or for each paragraph where none is numbered."""
    text = input.get("text", "")
    parts = re.split(r"(?m)^(?=\d+\.\s)", text) if re.search(r"(?m)^\d+\.\s", text) else text.split("\n\n")
    clauses = [part.strip() for part in parts if part.strip()]
    return {"subtask_inputs": [{"number": i, "text": clause} for i, clause in enumerate(clauses, 1)]}


async def collect(input: Json, context: Any, tools: Any) -> Json:
    """All findings, and how many clauses could not be reviewed."""
    findings = [one["output"] for one in input["inputs"]]
    return {"findings": findings, "unreviewed": len(input["failures"])}


async def majority(input: Json, context: Any, tools: Any) -> Json:
    """The verdict of most assessors; of equally many the first."""
    verdicts = [one["output"]["verdict"] for one in input["inputs"]]
    verdict, votes = Counter(verdicts).most_common(1)[0]
    return {"verdict": verdict, "votes": votes, "of": len(verdicts)}


async def gate(input: Json, context: Any, tools: Any) -> Json:
    """Accepted contracts are reported, all others rejected."""
    edge = "accept" if input["verdict"] == "accept" else "reject"
    return {"selected_edge": edge, "output": input}


async def render(input: Json, context: Any, tools: Any) -> Json:
    """The report that the user sees."""
    verdict = input.get("verdict", "accept" if not input.get("risk") else "review")
    return {**input, "verdict": verdict, "summary": input.get("summary", f"The verdict is {verdict!r}.")}


async def law_lookup(query: str) -> Json:
    """A paragraph of the local law corpus."""
    found = next((text for word, text in _LAW.items() if word in query.lower()), "")
    return {"paragraph": found}
