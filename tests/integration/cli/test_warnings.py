"""Warnings of the configuration at a start: each thing once, with the place and how many more there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from astromesh.cli.commands import validate
from astromesh.cli.commands.validate import load_valid
from tests.integration.agents_folder import manifest, write


def test_what_many_places_say_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABSENT_KEY", raising=False)
    skipped = {"provider": "openai", "model": "m", "api_key_env": "ABSENT_KEY"}
    model = {"primary": skipped, "fallback": [{"provider": "embedded"}]}
    folder = write(tmp_path, *(manifest(name, model=model) for name in ("one", "two", "three")))
    load_valid(folder)
    [told] = [line for line in capsys.readouterr().err.splitlines() if "ABSENT_KEY" in line]
    assert "one.agent.yaml" in told
    assert "2 more places" in told
    assert "astromesh validate" in told


def test_a_key_for_an_agent_that_is_not_there_is_made_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Broken agents are there, and without a configuration nobody knows."""
    folder = write(tmp_path, manifest("support"), {**manifest("sick"), "kind": "Agnet"})
    validate.warn_of_unknown_agents(folder, ["support", "sick", "suport", "nobody"])
    validate.warn_of_unknown_agents(tmp_path / "nowhere", ["nobody"])
    assert capsys.readouterr().err.splitlines() == [
        f"warning: unknown agent `suport` in {folder}. Did you mean `support`?",
        f"warning: unknown agent `nobody` in {folder}",
    ]
