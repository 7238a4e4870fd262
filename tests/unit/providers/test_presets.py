"""Services with OpenAI's chat completions: the table of docs/models.md, and what their requests have."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from astromesh.plugins import Plugins
from astromesh.providers.openai import OpenAI, OpenAIOptions
from astromesh.providers.presets import PRESETS, Preset
from astromesh.types import CompletionRequest, Message
from tests.platform.astromesh import ROOT

ROW = re.compile(r"^\| `(\w+)` \| `(https:[^`]+)` \| `(\w+)` \| `(\w+)` \| `(true|false)` \|$", re.MULTILINE)
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def test_the_page_has_the_table() -> None:
    rows = [
        (one.name, one.endpoint, one.variable, one.structured, str(one.stream_usage).lower())
        for one in PRESETS
    ]
    assert ROW.findall((ROOT / "docs" / "models.md").read_text()) == rows


@pytest.mark.parametrize("preset", PRESETS, ids=lambda one: one.name)
def test_a_service_is_called_as_openai_would_be_with_its_defaults(preset: Preset) -> None:
    plugin: Any = Plugins().load("providers", preset.name)
    assert issubclass(plugin, OpenAI)
    options = plugin.Options
    assert (options.usual_variable, options.usual_endpoints) == (preset.variable, (preset.endpoint,))
    made = plugin(options(model="m"))
    assert made.endpoint == preset.endpoint
    written = OpenAIOptions(
        model="m", endpoint=preset.endpoint, structured_output=preset.structured,
        stream_usage=preset.stream_usage,
    )  # fmt: skip
    request = CompletionRequest((Message("user", "Hi"),), output_schema=OBJECT)
    for stream in (False, True):
        body = orjson.loads(made.encode(request, stream))
        assert body == orjson.loads(OpenAI(written).encode(request, stream))
        assert ("stream_options" in body) == (stream and preset.stream_usage)
    assert options(model="m", structured_output="none", stream_usage=False).structured_output == "none"
