"""Errors become exit codes: 2 where a file or the call must change, 1 where the run failed."""

from __future__ import annotations

import json

import pytest

from astromesh.cli.errors import exit_code, report
from astromesh.errors import (
    AgentNotFoundError,
    AgentUnavailable,
    AllProvidersFailed,
    AstromeshError,
    BudgetExhausted,
    ConfigError,
    DeadlineExceeded,
    GuardrailBlocked,
    InvalidConfiguration,
    InvalidInput,
    InvalidManifest,
    ProviderTimeout,
    StoreUnavailable,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (AgentNotFoundError("x"), 2),
        (AgentUnavailable("x"), 2),
        (AgentUnavailable("x", temporary=True), 1),
        (InvalidInput("x"), 2),
        (GuardrailBlocked("topic_filter", "no"), 1),
        (AllProvidersFailed([ProviderTimeout("x")]), 1),
        (DeadlineExceeded("x"), 1),
        (BudgetExhausted("x"), 1),
        (StoreUnavailable("x"), 1),
        (AstromeshError("x"), 1),
    ],
)
def test_an_error_has_its_exit_code(error: AstromeshError, code: int) -> None:
    assert exit_code(error) == code


def test_every_fault_is_printed_with_their_number(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [InvalidManifest("is wrong", file=f"{name}.yaml", line=3) for name in "ab"]
    assert report(InvalidConfiguration(faults)) == 2
    printed = capsys.readouterr()
    assert (printed.out, "a.yaml:3: is wrong\nb.yaml:3: is wrong" in printed.err) == ("", True)
    assert "2 faults" in printed.err


def test_as_json_an_error_is_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    report(InvalidInput("The query is empty."), as_json=True)
    body = json.loads(capsys.readouterr().err)
    assert body == {"error": {"code": "invalid_input", "detail": "The query is empty."}}
