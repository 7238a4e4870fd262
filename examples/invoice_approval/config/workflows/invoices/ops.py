"""What the nodes do: each function is called with (input, context, tools) and answers a JSON value."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]
#: euros; larger invoices need a decision
LIMIT = 100


async def mail(input: Json, context: Any, tools: Any) -> str:
    return str(input["mail"])


async def size(input: Any, context: Any, tools: Any) -> Json:
    """A decision names the edge that is taken; `output` goes on along it."""
    invoice = json.loads(input) if isinstance(input, str) else input
    return {"selected_edge": "small" if invoice["amount"] <= LIMIT else "large", "output": invoice}


async def pay(input: Json, context: Any, tools: Any) -> Json:
    """Pays. `context.idempotency_key` is the same in every attempt: send it to the bank."""
    return {**input, "paid": True}


async def refused(input: Json, context: Any, tools: Any) -> Json:
    return {"paid": False}
