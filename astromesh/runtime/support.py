"""What the pages define and this runtime does not do yet; writing such a key is a fault, never ignored."""

from __future__ import annotations

from collections.abc import Mapping

_BUDGETS = "Budgets are not supported yet; bound a run with max_iterations and timeout_seconds."

#: see `astromesh.config.seams.Unsupported`
UNSUPPORTED: Mapping[str, str] = {
    "Agent.spec.budgets.per_session": _BUDGETS,
    "Agent.spec.budgets.per_principal_daily": _BUDGETS,
    "RuntimeConfig.spec.telemetry.capture_content": "Traces hold no content yet.",
}
