"""The JSON Schemas: as written in config/schemas, right for every sample, and as strict as the loader."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import orjson
import pytest
import yaml

from astromesh.config.file import KINDS
from astromesh.config.parser import Document, parse_text
from astromesh.config.schema import SCHEMA_FILES, schema
from astromesh.plugins import Plugins
from tests.unit.config.samples import AGENT, ENV, OTHERS, FewPlugins

ROOT = Path(__file__).parents[3]
SCHEMAS = ROOT / "config" / "schemas"
SAMPLES = sorted(p for p in (ROOT / "config").rglob("*.yaml") if "workflows" not in p.parts)
FEW = {kind: schema(kind, FewPlugins()) for kind in KINDS}
CHAT = ("spec", "memory", "conversational")
PAGE = {"Agent": AGENT, **{kind: text for kind, (_, text) in OTHERS.items()}}


def data_of(text: str) -> Any:
    document = parse_text(text, Document(Path("x.yaml")), ENV)
    assert document.node is not None
    return document.node.value


def with_value(kind: str, path: tuple[str | int, ...], value: Any) -> Any:
    whole = yaml.safe_load(PAGE[kind])
    data = whole
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value
    return whole


def test_the_written_schemas_are_up_to_date() -> None:
    """Where this fails: run scripts/schemas.py and look at what changed."""
    plugins = Plugins()
    stale = [
        kind
        for kind, name in SCHEMA_FILES.items()
        if orjson.loads((SCHEMAS / f"{name}.schema.json").read_bytes())
        != orjson.loads(orjson.dumps(schema(kind, plugins)))
    ]
    assert stale == []


def test_the_script_writes_nothing_where_nothing_changed() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "schemas.py"], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_a_json_schema(kind: str) -> None:
    jsonschema_rs.meta.validate(FEW[kind])
    assert FEW[kind]["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("sample", SAMPLES, ids=[str(p.relative_to(ROOT)) for p in SAMPLES])
def test_every_sample_names_its_schema_and_fits_it(sample: Path) -> None:
    text = sample.read_text()
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named, "the first line must be # yaml-language-server: $schema=…"
    file = (sample.parent / named[1]).resolve()
    kind = data_of(text)["kind"]
    assert file == (SCHEMAS / f"{SCHEMA_FILES[kind]}.schema.json").resolve()
    validator = jsonschema_rs.validator_for(orjson.loads(file.read_bytes()))
    assert [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(data_of(text))] == []


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_s_own_files_fit_the_schemas(kind: str) -> None:
    assert jsonschema_rs.validator_for(FEW[kind]).is_valid(data_of(PAGE[kind]))


@pytest.mark.parametrize(
    ("kind", "path", "value", "fits"),
    [
        ("Agent", ("spec", "identty"), {}, False),
        ("Agent", ("spec", "tools", 0, "top_k"), 3, True),
        ("Agent", ("spec", "tools", 0, "top_k"), "${TOP_K}", True),
        ("Agent", ("spec", "tools", 0, "top_k"), "3", False),
        ("Agent", ("spec", "tools", 0, "pipline"), "x", False),
        ("Agent", ("spec", "tools", 0, "type"), "rga", False),
        ("Agent", ("spec", "tools", 0), {"name": "k", "type": "rag"}, False),
        ("Agent", ("spec", "model", "primary"), {"provider": "embedded"}, True),
        ("Agent", ("spec", "model", "primary"), {"provider": "embedded", "model": "m"}, False),
        ("Agent", ("spec", "model", "primary"), {"provider": "openai", "modle": "m"}, False),
        ("Agent", ("spec", "model", "primary"), {"provider": "my-gateway", "organization": "m"}, True),
        ("Agent", ("spec", "model", "fallback"), {"provider": "embedded"}, True),
        ("Agent", ("spec", "orchestration"), {}, True),
        ("Agent", ("spec", "orchestration"), {"max_iterations": "${N}"}, True),
        ("Agent", ("spec", "orchestration"), {"pattern": "plan_and_execute", "max_replans": 2}, True),
        ("Agent", ("spec", "orchestration"), {"pattern": "supervisor", "supervisor": {}}, True),
        ("Agent", ("spec", "orchestration"), {"pattern": "plan_and_execute", "max_replan": 2}, False),
        ("Agent", CHAT, {"backend": "sqlite", "strategy": "summary", "keep_turns": 3}, True),
        ("Agent", CHAT, {"backend": "sqlite", "keep_turns": 3}, False),
        ("Agent", CHAT, {"backend": "sqlite", "max_turns": 3}, True),
        ("Agent", ("spec", "guardrails", "input", 1, "action"), "shout", False),
        ("ProviderConfig", ("spec", "providers", "x"), {"type": "openai", "retries": 3}, True),
        ("ProviderConfig", ("spec", "providers", "x"), {"type": "opanai"}, False),
        ("RuntimeConfig", ("spec", "api", "port"), "${PORT:-8000}", True),
        ("RuntimeConfig", ("spec", "api", "port"), 70000, False),
        ("RuntimeConfig", ("spec", "telemetry", "capture_content"), "yes", False),
        ("MCPConfig", ("spec", "servers", "x"), {"transport": "tcp"}, False),
    ],
)  # fmt: skip
def test_the_schema_says_what_the_loader_says(
    kind: str, path: tuple[str | int, ...], value: Any, fits: bool
) -> None:
    assert jsonschema_rs.validator_for(FEW[kind]).is_valid(with_value(kind, path, value)) is fits
