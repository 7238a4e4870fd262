"""Recorded calls: what an earlier version has stored is still read, and errors come back as they were."""

from __future__ import annotations

import orjson
import pytest

from astromesh.errors import (
    AllProvidersFailed,
    AstromeshError,
    MissingKey,
    ProviderError,
    ProviderPaused,
    ProvidersRateLimited,
    ProviderTimeout,
    ProviderUnavailable,
    ToolFailed,
    ToolPermissionError,
)
from astromesh.graph.call_record import completion_of, completion_to_json, error_of, error_to_json
from astromesh.types import CompletionResult, ToolCall, Usage

ANSWER = CompletionResult(
    "text", (ToolCall("1", "look", '{"a": 1}', "signed"),), Usage(1, 2), "p", "m", attempts=({"error": "x"},)
)


def test_an_answer_comes_back_as_it_was() -> None:
    assert completion_of(orjson.loads(orjson.dumps(completion_to_json(ANSWER)))) == ANSWER


def test_tool_calls_that_were_stored_as_lists_are_read() -> None:
    stored = {**completion_to_json(ANSWER), "tool_calls": [["1", "look", '{"a": 1}', "signed"]]}
    assert completion_of({**stored, "latency_ms": 0.0}) == ANSWER
    assert completion_of({**stored, "tool_calls": [["1", "look", "{}"]]}).tool_calls[0].kept == ""


@pytest.mark.parametrize(
    "error",
    [
        ToolFailed("it broke"),
        MissingKey("there is no key"),
        ProviderUnavailable("away", provider="p", status=503),
        AllProvidersFailed([ProviderTimeout("late", provider="p")], begun=True),
        ProvidersRateLimited([ProviderPaused("busy", provider="p", status=429)], retry_after=9.0),
    ],
)
def test_an_error_comes_back_as_it_was(error: AstromeshError) -> None:
    again = error_of(orjson.loads(orjson.dumps(error_to_json(error))))
    assert (type(again), str(again)) == (type(error), str(error))
    assert getattr(again, "retry_after", 0.0) == getattr(error, "retry_after", 0.0)


def test_an_error_that_needs_more_than_its_message_becomes_the_general_one() -> None:
    assert type(error_of(error_to_json(ToolPermissionError("t", "a")), ToolFailed)) is ToolFailed
    old = {"type": "AllProvidersFailed", "message": "No model provider answered."}
    assert repr(error_of(old, ProviderError)) == "ProviderError('No model provider answered.')"
