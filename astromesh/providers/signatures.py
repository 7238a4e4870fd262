"""What a model wants to have back with its own tool calls: Gemini's thought signatures.

They belong to a call by its id, and are kept for the next turns of this process. A call from elsewhere
(another provider, another process) goes without.
"""

from __future__ import annotations

from collections import OrderedDict

#: calls whose signatures are kept, and characters that one may have
_MOST, _LONGEST = 2048, 64 * 1024


class Signatures:
    """The signatures of the newest calls of one model."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: OrderedDict[str, str] = OrderedDict()

    def keep(self, call_id: str, signature: str) -> None:
        if len(signature) > _LONGEST:
            return
        self._kept[call_id] = signature
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def of(self, call_id: str) -> str:
        """The signature, or the empty text."""
        return self._kept.get(call_id, "")
