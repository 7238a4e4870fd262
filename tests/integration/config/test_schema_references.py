"""Schemas that refer to another document are refused; nobody is asked for it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from astromesh.config.folder import load
from astromesh.graph import PromptNode
from astromesh.plugins import Plugins
from astromesh.testing import ScriptedProvider, plugin_of
from astromesh.tools.json_schema import argument_validator
from astromesh.types import ToolSpec
from tests.integration.agents_folder import manifest, write


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def a_tool(schema: dict[str, Any], _: Path) -> str:
    with pytest.raises(Exception, match="JSON Schema") as told:
        argument_validator(ToolSpec("look", "Looks.", schema))
    return str(told.value)


def a_node(schema: dict[str, Any], _: Path) -> str:
    with pytest.raises(Exception, match="JSON Schema") as told:
        PromptNode("p", instructions="Say.", output_schema=schema)
    return str(told.value)


def an_agent(schema: dict[str, Any], folder: Path) -> str:
    plugins = Plugins({"providers": {"scripted": plugin_of(ScriptedProvider())}})
    loaded = load(write(folder, manifest(output_schema=schema)), env={}, resolver=plugins)
    (told,) = loaded.broken["helper"]
    return str(told)


@pytest.mark.parametrize("told_by", [a_tool, a_node, an_agent])
def test_no_document_is_fetched(
    listener: socket.socket, told_by: Callable[[dict[str, Any], Path], str], tmp_path: Path
) -> None:
    """Neither for a tool's arguments nor for a node's output nor when the configuration is read."""
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/schema.json"
    told = told_by({"type": "object", "properties": {"a": {"$ref": url}}}, tmp_path)
    assert url in told
    with pytest.raises(BlockingIOError):
        listener.accept()
