"""When keys expire: never, or within a hundred years; whatever a file holds can be listed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from astromesh.access.keys import MAX_DAYS, ApiKeyRequest, ApiKeyStore
from astromesh.cli.commands.access import create, list_keys
from astromesh.errors import InvalidInput
from astromesh.storage.sqlite import FILE, Database
from astromesh.telemetry.clock import SystemClock
from astromesh.testing import ManualClock


def key(days: float) -> ApiKeyRequest:
    return ApiKeyRequest("ops", frozenset({"metrics:read"}), "", "", days)


@pytest.mark.parametrize("days", [99_999_999_999.0, MAX_DAYS + 1, float("inf"), float("nan"), -1.0])
def test_a_date_that_nobody_means_is_refused(tmp_path: Path, days: float) -> None:
    with pytest.raises(InvalidInput, match="at most 36500 days"):
        create("ops", scope=["metrics:read"], expires=days, data=tmp_path, json=True)


def test_the_last_day_there_may_be_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create("ops", scope=["metrics:read"], expires=MAX_DAYS, data=tmp_path, json=True)
    made = json.loads(capsys.readouterr().out)
    list_keys(tmp_path, json=True)
    assert [line["expires_at"] for line in json.loads(capsys.readouterr().out)] == [made["expires_at"]]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_key_of_an_older_file_beyond_all_dates_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    far = SystemClock().now() + 1e13

    async def made() -> None:
        async with Database(tmp_path / FILE) as database:
            await (await ApiKeyStore.open(database, ManualClock(far))).create(key(1))

    asyncio.run(made())
    list_keys(tmp_path, json=as_json)
    assert "9999-12-31" in capsys.readouterr().out
