"""What episodic memory keeps of a run (document 001, step 11): tool calls, what the rules did, who answered.

It goes into the prompts of later runs: what the model asked of tools, and what these answered, is kept as the
output rules leave it.
"""

from __future__ import annotations

import orjson

from astromesh.core.checked_data import checked_data
from astromesh.core.guardrails import GuardrailsEngine
from astromesh.node.scope import Told
from astromesh.runtime.recorded import readable
from astromesh.runtime.records import ReleasedAnswer
from astromesh.runtime.run import Run
from astromesh.types import JsonObject

#: characters of arguments and of a result that are kept
_KEPT = 500
#: characters of a result that the rules see: behind what is kept, so that nothing at its end is half of what
#: they look for
_SEEN = 10_000


def episode(rules: GuardrailsEngine, released: ReleasedAnswer, run: Run) -> list[JsonObject]:
    """The events of a run that has its answer.

    Args:
        rules: of its agent.
    """
    details = released.details
    events: list[JsonObject] = [
        {"event": "tool_call", **_kept(rules, told), "run_id": run.id} for told in run.scope.tools_told or ()
    ]
    events += [{"event": "guardrail", **action, "run_id": run.id} for action in released.actions]
    events.append(
        {
            "event": "run",
            "run_id": run.id,
            "provider": details["provider"],
            "model": details["model"],
            "latency_ms": run.elapsed_ms(),
            "usage": details["usage"],
        }
    )
    return events


def _kept(rules: GuardrailsEngine, told: Told) -> JsonObject:
    result = rules.shown(told.result[:_SEEN]) if rules.output_rules else told.result
    return {"tool": told.name, "arguments": _arguments(rules, told), "ok": told.ok, "result": result[:_KEPT]}


def _arguments(rules: GuardrailsEngine, told: Told) -> object:
    """As data; too long ones as text that is cut."""
    long = len(told.call.arguments) > _KEPT
    if not rules.output_rules:
        return told.call.arguments[:_KEPT] if long else readable(told.call)
    data = checked_data(rules, readable(told.call))  # as data: in JSON a line end touches the word behind it
    if isinstance(data, str):
        return data[:_KEPT]
    return orjson.dumps(data).decode()[:_KEPT] if long else data
