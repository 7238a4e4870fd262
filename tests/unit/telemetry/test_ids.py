"""Ids of runs and traces: sortable, unguessable, never the same twice."""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from astromesh.telemetry.ids import created_at, new_id, trace_id


def some(count: int = 600) -> list[str]:
    return [trace_id() for _ in range(count)]


def test_ids_are_of_their_form_and_name_their_time() -> None:
    assert re.fullmatch(r"run_[0-9A-HJKMNP-TV-Z]{26}", new_id("run_"))
    assert re.fullmatch(r"[0-9a-f]{32}", trace_id())
    first = new_id()
    assert first[:10] <= new_id()[:10]
    assert created_at(f"run_{first}") > 1_700_000_000
    assert created_at("task_1") == 0


def test_every_letter_of_the_random_part_may_be_any_letter() -> None:
    """80 random bits: in 2,000 ids one of the 32 letters is missing at some place once in 10^25 times."""
    parts = zip(*[new_id()[10:] for _ in range(2_000)], strict=True)
    assert {len(set(part)) for part in parts} == {32}


def test_threads_are_never_given_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = [one for ids in pool.map(lambda _: some(), range(16)) for one in ids]
    assert len(set(made)) == len(made) == 9_600


FORKS = """
import os
from astromesh.telemetry.ids import trace_id
trace_id()
child = os.fork()
made = [trace_id() for _ in range(300)]
if child:
    os.waitpid(child, 0)
print(*made, flush=True)
"""


def test_a_forked_process_makes_others_than_its_parent() -> None:
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    made = ran.stdout.split()
    assert len(set(made)) == len(made) == 600
