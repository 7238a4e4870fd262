"""Which workers of this machine live: a locked file each, which the system unlocks when its process dies.

Other machines learn of a death when the lease has passed; processes that share a data folder learn of it at
once, so that a restarted server takes up what it was killed in.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from astromesh.storage.folder import private_folder

FOLDER = "workers"
_HIDDEN = "."


class Presence:
    """The workers of one data folder. Calls take microseconds; nothing of it waits for the disk.

    Args:
        data_dir: the folder that processes of one installation share.
    """

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER
        self._own: dict[str, int] = {}

    def enter(self, worker: str) -> None:
        """This worker lives for as long as this process does, or until `leave`."""
        if worker in self._own:
            return
        private_folder(self._folder)
        hidden = self._folder / f"{_HIDDEN}{worker}"  # nobody finds it before it is locked
        opened = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._own[worker] = opened
        hidden.rename(self._folder / worker)

    def leave(self, worker: str) -> None:
        opened = self._own.pop(worker, None)
        if opened is not None:
            (self._folder / worker).unlink(missing_ok=True)
            os.close(opened)

    def dead(self) -> list[str]:
        """Workers whose process has ended without leaving."""
        files = self._folder.iterdir() if self._folder.exists() else ()
        others = (f for f in files if f.name not in self._own and not f.name.startswith(_HIDDEN))
        return [file.name for file in others if self._is_dead(file)]

    def forget(self, worker: str) -> None:
        """A dead worker is dealt with."""
        (self._folder / worker).unlink(missing_ok=True)

    def _is_dead(self, file: Path) -> bool:
        try:
            opened = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError):  # it has just left; another user's, who must look
            return False
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.fstat(opened).st_nlink > 0  # else it has left just now
        except BlockingIOError:
            return False
        finally:
            os.close(opened)
