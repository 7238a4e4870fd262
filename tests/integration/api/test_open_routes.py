"""What is open without a key where keys are asked for: metrics for programs on this machine, nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.testing import ScriptedProvider
from tests.integration.agents_folder import manifest, runtime_of, write

API_KEYS = "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {auth: {mode: api_key}}\n"
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("config"), manifest("helper"))
    (folder / "runtime.yaml").write_text(API_KEYS)
    return folder


@pytest.fixture(scope="module", params=["127.0.0.1", "::1"])
def here(folder: Path, request: pytest.FixtureRequest) -> Iterator[TestClient]:
    """A program on this machine."""
    app = create_app(runtime_of(folder, ScriptedProvider()))
    with TestClient(app, base_url=HERE, client=(request.param, 50000)) as client:
        yield client


@pytest.fixture(scope="module")
def elsewhere(folder: Path) -> Iterator[TestClient]:
    """A program on another machine that says it talks to this one's loopback."""
    app = create_app(runtime_of(folder, ScriptedProvider()))
    with TestClient(app, base_url=HERE, client=("192.0.2.7", 50000)) as client:
        yield client


def test_metrics_are_open_to_programs_on_this_machine(here: TestClient) -> None:
    assert "astromesh_runs_total" in here.get("/metrics").text
    assert here.get("/metrics", headers={"host": "localhost:8000"}).status_code == 200


def test_metrics_are_closed_to_other_machines(elsewhere: TestClient) -> None:
    assert elsewhere.get("/metrics").status_code == 401
    assert elsewhere.get("/metrics", headers={"x-forwarded-for": "127.0.0.1"}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"x-forwarded-for": "192.0.2.7"},
        {"forwarded": "for=192.0.2.7"},
        {"via": "1.1 proxy"},
        {"host": "metrics.example"},
        {"origin": "https://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
    ],
)
def test_a_proxy_or_a_page_on_this_machine_asks_for_somebody_else(
    here: TestClient, headers: dict[str, str]
) -> None:
    assert here.get("/metrics", headers=headers).status_code == 401


def test_the_description_of_the_routes_needs_a_key_as_the_routes_do(here: TestClient) -> None:
    assert here.get("/openapi.json").status_code == 401


def test_the_page_that_shows_the_description_is_open_and_holds_none_of_it(here: TestClient) -> None:
    page = here.get("/docs")
    assert page.status_code == 200
    assert "/v1/" not in page.text
    assert "unsafe" not in page.headers["content-security-policy"]


def test_without_authentication_the_description_is_open(tmp_path: Path) -> None:
    app = create_app(runtime_of(write(tmp_path, manifest("helper")), ScriptedProvider()))
    with TestClient(app) as client:
        answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert "/v1/agents" in answer.text


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
@pytest.mark.parametrize("name", ["swagger-ui.js", "swagger-ui.css", "openapi.js"])
def test_the_page_loads_its_files_from_this_server(here: TestClient, name: str, encoding: str) -> None:
    answer = here.get(f"/docs/{name}", headers={"accept-encoding": encoding})
    assert answer.status_code == 200
    assert (b"openapi" if name == "openapi.js" else b"swagger-ui") in answer.content
    assert here.get("/docs/nothing.js").status_code == 404
