"""The files of the console over HTTP: how they are sent, and that they need nothing from elsewhere."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from importlib.resources import files as package_files
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from astromesh.api.app import create_app
from astromesh.api.routes import pages
from astromesh.runtime.engine import AgentRuntime
from tests.integration.agents_folder import manifest, write

CONSOLE = Path(str(package_files("astromesh") / "console"))
OWN = sorted(
    path.relative_to(CONSOLE).as_posix()
    for kind in ("*.js", "*.css", "*.html", "*.svg")
    for path in CONSOLE.rglob(kind)
)
IMPORT = re.compile(r"""(?:^import\s|\bfrom\s*|\bimport\(\s*)["']([^"'\s]+\.js)["']""", re.MULTILINE)
LINK = re.compile(r"""(?:src|href)="([^"#]+)\"""")
#: what all files of the console may weigh together, compressed
MOST_BYTES = 240 * 1024


def client_of(folder: Path) -> TestClient:
    return TestClient(create_app(AgentRuntime(folder, data_dir=folder / "data")))


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with client_of(write(tmp_path_factory.mktemp("config"), manifest("helper"))) as client:
        yield client


def test_the_page_may_load_what_this_server_has_and_nothing_inline(client: TestClient) -> None:
    answer = client.get("/console/")
    assert answer.headers["content-security-policy"] == pages.CONTENT_SECURITY_POLICY
    assert "unsafe" not in pages.CONTENT_SECURITY_POLICY
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", answer.text)
    assert client.get("/console", follow_redirects=False).headers["location"] == "/console/"


def test_browsers_find_the_console_and_programs_find_where_things_are(client: TestClient) -> None:
    browser = client.get("/", headers={"accept": "text/html,*/*;q=0.8"}, follow_redirects=False)
    assert (browser.status_code, browser.headers["location"]) == (307, "/console/")
    assert client.get("/").json()["links"]["console"] == "/console"


@pytest.mark.parametrize("name", OWN)
def test_every_file_is_served_and_every_import_leads_to_one(client: TestClient, name: str) -> None:
    answer = client.get(f"/console/{name}")
    assert answer.status_code == 200
    pattern = {".js": IMPORT, ".html": LINK}.get(Path(name).suffix)
    for target in pattern.findall(answer.text) if pattern else ():
        assert target.startswith(("./", "../")) or pattern is LINK, target
        base = Path("/") if name == "openapi.html" else Path("/console", name).parent  # it is the page /docs
        assert client.get((base / target).as_posix()).status_code == 200, target


def test_no_file_names_another_host() -> None:
    own = [CONSOLE / name for name in OWN if not name.startswith("vendor/")]
    found = {p.name: re.findall(r"https?://(?!www\.w3\.org/)[^\s\"'`)]+", p.read_text()) for p in own}
    assert {name: hosts for name, hosts in found.items() if hosts} == {}


def test_the_console_is_small(client: TestClient) -> None:
    sizes = {name: len(gzip.compress((CONSOLE / name).read_bytes(), 6)) for name in OWN}
    assert sum(sizes.values()) <= MOST_BYTES, sizes


def test_files_are_compressed_and_asked_for_again_only_when_changed(client: TestClient) -> None:
    answer = client.get("/console/app.js", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.text == (CONSOLE / "app.js").read_text()
    assert (
        "content-encoding"
        not in client.get("/console/app.js", headers={"accept-encoding": "identity"}).headers
    )
    again = client.get("/console/app.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


OTHER_PATHS = """
    console.py package.json ../files.py %2e%2e/files.py vendor/lock.sha256 x.js %00.js pages/%00/x.js %FF.js
    //etc/x.html
"""


@pytest.mark.parametrize("path", [*OTHER_PATHS.split(), f"{'a' * 4000}.js"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    answer = client.get(f"/console/{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_licences_of_all_libraries_are_beside_them() -> None:
    names = {path.name for path in (CONSOLE / "vendor" / "licences").iterdir()}
    for package in (
        "dagrejs-dagre",
        "dompurify",
        "htm",
        "marked",
        "preact",
        "preact-signals",
        "swagger-ui-dist",
        "uplot",
    ):
        assert any(name.startswith(f"{package}-LICENSE") for name in names), package


def test_a_configuration_switches_it_off(tmp_path: Path) -> None:
    folder = write(tmp_path, manifest("helper"))
    (folder / "runtime.yaml").write_text(
        "apiVersion: astromesh/v1\nkind: RuntimeConfig\nspec: {console: {enabled: false}}\n"
    )
    with client_of(folder) as client:
        answer = client.get("/console/")
        index = client.get("/", headers={"accept": "text/html"}).json()
    assert "console" not in index["links"]
    assert answer.status_code == 404
    assert "spec.console.enabled" in answer.json()["detail"]
