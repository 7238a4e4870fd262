"""No test is skipped, or expected to fail, without a reason in `tests/allowed_skips.txt`.

A line of that file is a pattern of test ids (as of `fnmatch`), a blank, and the reason. Anything skipped that
no line allows makes the run fail, and so does a line without a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parent.parent / "allowed_skips.txt"


@dataclass(frozen=True)
class Allowed:
    pattern: str
    reason: str


def parse(text: str) -> list[Allowed]:
    """The entries; '#' opens a comment line.

    Raises:
        ValueError: an entry has no reason.
    """
    entries: list[Allowed] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        pattern, _, reason = line.strip().partition(" ")
        if not reason.strip():
            raise ValueError(f"{ALLOWED.name}:{number}: {pattern} needs a reason after it")
        entries.append(Allowed(pattern, reason.strip()))
    return entries


class SkipPolicy:
    """The pytest plugin."""

    def __init__(self, allowed: list[Allowed]) -> None:
        self._allowed = allowed
        self.refused: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped:
            self._judge(report.nodeid, getattr(report, "wasxfail", None) or _reason(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._judge(report.nodeid, _reason(report))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skipped without a reason in tests/allowed_skips.txt", red=True)
            for name, reason in self.refused.items():
                terminalreporter.line(f"{name}: {reason}")

    def _judge(self, name: str, reason: str) -> None:
        if not any(fnmatchcase(name, entry.pattern) for entry in self._allowed):
            self.refused[name] = reason


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return str(report.longrepr[-1]) if isinstance(report.longrepr, tuple) else str(report.longrepr)


def pytest_configure(config: pytest.Config) -> None:
    try:
        allowed = parse(ALLOWED.read_text())
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(SkipPolicy(allowed), "skip-policy")
