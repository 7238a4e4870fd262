"""Log lines: one form for ours and those of libraries, and no secret in any."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from astromesh.logs import add_timestamp, mask_secret_keys, redact_secrets

PROGRAM = """
import asyncio, logging, warnings
import structlog
from astromesh.logs import configure_logging

configure_logging("info", {form!r})
structlog.get_logger().info("run", run_id="run_1", api_key="sk-abcdefgh12345678", tokens=40)
logging.getLogger("some.library").warning("no %s for %s", "luck", "postgresql://me:hunter22@host/db")
logging.getLogger("some.library").info("chatter")

async def main():
    async def fails():
        raise ValueError("with Bearer abcdefghijklmnop in caf\\udce9.txt")
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)

asyncio.run(main())
"""


def printed(form: str) -> list[str]:
    argv = [sys.executable, "-c", PROGRAM.format(form=form)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stderr.splitlines()


def test_what_libraries_log_is_a_json_line_too_with_its_trace_and_without_secrets() -> None:
    """So that who reads the log by machine meets no line that is something else."""
    run, library, lost = map(json.loads, printed("json"))
    assert (run["event"], run["run_id"], run["api_key"], run["tokens"]) == ("run", "run_1", "***", 40)
    assert (library["logger"], library["level"]) == ("some.library", "warning")
    assert library["event"] == "no luck for postgresql://me:***@host/db"
    assert lost["logger"] == "asyncio"
    assert "ValueError: with *** in caf\udce9.txt" in lost["exception"], "no Unicode, but a line"


VERBOSE = """
import asyncio
from astromesh.graph import FunctionNode, LoggingHook, NodeFlag, PromptGraph, PromptGraphEngine
from astromesh.logs import configure_logging

configure_logging({level!r}, "json")
node = FunctionNode("loud", lambda state: "the whole output", flags=[NodeFlag.VERBOSE])
asyncio.run(PromptGraphEngine(PromptGraph(nodes=[node]), hooks=[LoggingHook()]).ainvoke("q"))
"""


@pytest.mark.parametrize(
    ("level", "levels"), [("debug", ["info", "debug", "info"]), ("info", ["info"] * 2), ("warning", [])]
)
def test_what_graphs_log_goes_by_the_configured_level(level: str, levels: list[str]) -> None:
    """VERBOSE nodes say their whole output at `debug`, the LoggingHook what runs at `info`."""
    argv = [sys.executable, "-c", VERBOSE.format(level=level)]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stderr
    lines = [json.loads(line) for line in said.splitlines()]
    assert sorted(line["level"] for line in lines) == sorted(levels)
    assert ("the whole output" in said) is (level == "debug")


def test_for_people_it_is_lines_of_text() -> None:
    lines = printed("console")
    assert "run_id=run_1 api_key=*** tokens=40" in lines[0]
    assert "warning no luck for postgresql://me:***@host/db logger=some.library" in lines[1]
    assert lines[-1].endswith(r"ValueError: with *** in caf\udce9.txt")


RUNS = """
from astromesh.logs import PRETTY, configure_logging, get_logger

configure_logging("info", PRETTY)
for tools in (0, 1, 2):
    get_logger("astromesh.run").info(
        "run", status="completed", reason="completed", agent="helper", run_id="run_1", duration_ms=1500.0,
        tokens=40, cost_usd=0.0, tools=tools,
    )
"""


def test_at_development_a_run_is_one_line_of_what_it_took() -> None:
    done = subprocess.run([sys.executable, "-c", RUNS], capture_output=True, text=True, check=True)
    lines = [line.partition(" ")[2] for line in done.stderr.splitlines()]
    assert lines == [
        f"helper completed  1.50 s  40 tokens  $0{tools}  run_1" for tools in ("", "  1 tool", "  2 tools")
    ]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("Bearer abcdefghijkl.mnop", "***"),
        ("key sk-abcdefgh1234 and am_abcdefgh1234", "key *** and ***"),
        ("password=hunter22, then", "password=***, then"),
        ("PASSWORD: hunter22", "PASSWORD: ***"),
        ("access_token=abcd1234&x=1", "access_token=***&x=1"),
        ('{"client_secret":"abcd1234"}', '{"client_secret":"***"}'),
        ("api-key = 'abcd1234'", "api-key = '***'"),
        ("redis://:abcd1234@host", "redis://:***@host"),
        ("redis://me:12345@host", "redis://me:***@host"),
        ("redis://me:1234/5@host", "redis://me:***@host"),
        ("redis://me:12345678 was cut", "redis://me:*** was cut"),
        ("redis://:2026abcd", "redis://:***"),
        ("redis://:20262", "redis://:***"),
    ],
)
def test_secrets_inside_texts_are_blanked(said: str, left: str) -> None:
    assert redact_secrets(said) == left


@pytest.mark.parametrize(
    "said",
    [
        '{"event":"run","tokens":1041,"run_id":"run_1","duration_ms":83.4}',
        "max_tokens=4000",
        "https://example.org/a@b listens",
        '{"endpoint":"http://127.0.0.1:8080/v1?a=b"}',
        "cannot reach http://localhost:43180: try https://h:8443, or (http://h:8081)",
        "Redis needs a URL redis://HOST:PORT/NUMBER: redis.url",
        "the secret is out",
        '{"had_token":true,"api_key":"***"}',
    ],
)
def test_what_only_sounds_like_one_stays(said: str) -> None:
    assert redact_secrets(said) == said


def test_a_line_tells_its_time_in_utc_to_the_microsecond() -> None:
    before = time.time_ns() // 1000
    told = str(add_timestamp(None, "info", {"event": "run"})["timestamp"])
    after = time.time_ns() // 1000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", told)
    since = datetime.fromisoformat(told) - datetime.fromtimestamp(0, UTC)
    assert before <= since // timedelta(microseconds=1) <= after


def test_values_of_secret_keys_are_blanked() -> None:
    event = {"authorization": "x", "bearer_token": "x", "tokens": 4, "token": "x", "Cookie": "x"}
    assert mask_secret_keys(None, "info", event) == {
        "authorization": "***", "bearer_token": "***", "tokens": 4, "token": "***", "Cookie": "***",
    }  # fmt: skip


LIBRARY = """
import asyncio, logging, sys
from astromesh.logs import get_logger

if "asked" in sys.argv:
    logging.basicConfig(level="INFO", format="%(name)s %(levelname)s %(message)s")
log = get_logger("astromesh.run")
log.info("run", status="completed", api_key="sk-abcdefgh12345678")
try:
    raise ValueError("no luck")
except ValueError:
    log.exception("run_crashed", url="postgresql://me:hunter22@host/db")
"""


def test_inside_another_program_nothing_is_printed_unless_it_configures_logging() -> None:
    """Neither structlog's default, which prints to stdout, nor the last resort of `logging` writes a line."""
    quiet, asked = (
        subprocess.run([sys.executable, "-c", LIBRARY, *more], capture_output=True, text=True, check=True)
        for more in ([], ["asked"])
    )
    assert (quiet.stdout, quiet.stderr) == ("", "")
    assert asked.stdout == ""
    assert asked.stderr.startswith("astromesh.run INFO run status=completed api_key=***\n")
    assert "astromesh.run ERROR run_crashed url=postgresql://me:***@host/db\nTraceback" in asked.stderr
    assert "ValueError: no luck" in asked.stderr
