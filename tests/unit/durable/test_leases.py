"""Which workers live: a locked file each, in a folder that processes share."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from astromesh.durable.leases import FOLDER, WorkerHeartbeat


def test_a_worker_is_dead_when_its_file_is_unlocked_and_nobody_has_dealt_with_it(tmp_path: Path) -> None:
    one, other = WorkerHeartbeat(tmp_path), WorkerHeartbeat(tmp_path)
    assert other.dead() == []
    one.enter("w1")
    one.enter("w1")
    assert (one.dead(), other.dead()) == ([], [])
    os.close(one._own.pop("w1"))  # as the system does when a process dies
    assert other.dead() == ["w1"]
    other.forget("w1")
    assert other.dead() == []


def test_a_worker_that_enters_is_never_thought_dead(tmp_path: Path) -> None:
    """Although others look all the time: what they find is locked already."""
    ended, found = threading.Event(), list[str]()

    def look() -> None:
        others = WorkerHeartbeat(tmp_path)
        while not ended.is_set():
            found.extend(others.dead())

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for n in range(500):
            presence = WorkerHeartbeat(tmp_path)
            presence.enter(f"w{n}")
            presence.leave(f"w{n}")
    finally:
        ended.set()
        looking.join()
    assert found == []


def test_files_of_another_user_are_left_to_that_user(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "theirs").symlink_to("/proc/1/mem")  # exists, and nobody may open it
    assert WorkerHeartbeat(tmp_path).dead() in ([], ["theirs"])


def test_the_reports_of_others_are_read_while_one_leaves(tmp_path: Path) -> None:
    one, other = WorkerHeartbeat(tmp_path), WorkerHeartbeat(tmp_path)
    one.enter("w1")
    one.report("w1", b"busy")
    (tmp_path / FOLDER / "w2").symlink_to(tmp_path / "left")  # listed, and no longer there
    assert list(other.reports()) == ["w1"]


def test_a_worker_that_leaves_has_no_file_and_may_enter_again(tmp_path: Path) -> None:
    one, other = WorkerHeartbeat(tmp_path), WorkerHeartbeat(tmp_path)
    file = tmp_path / FOLDER / "w1"
    for _ in range(2):
        one.enter("w1")
        assert file.stat().st_mode & 0o777 == 0o600
        one.report("w1", b"busy")
        assert {name: text.strip() for name, text in other.reports().items()} == {"w1": b"busy"}
        assert one.reports() == {}
        one.leave("w1")
        assert not file.exists()
        one.leave("w1")  # it has left
    assert (other.dead(), other.reports()) == ([], {})
    other.forget("w1")  # another process was faster
