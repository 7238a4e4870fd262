"""A folder whose files a model may read or write, and nothing outside it."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path

from astromesh.errors import ToolFailed

_SAFE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class FileRoot:
    """A folder whose paths cannot leave it.

    Every part of a path is opened relative to the folder before it, and never through a symbolic link, so a
    change between a check and its use has no effect.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes

    async def read(self, path: str) -> str:
        """Returns the text of a file. Raises: ToolFailed: it is missing, too large, or not text."""
        return await asyncio.to_thread(self._read, path)

    async def write(self, path: str, content: str) -> int:
        """Writes a file and creates its folders; returns its size in bytes. Raises: ToolFailed."""
        return await asyncio.to_thread(self._write, path, content)

    def _read(self, path: str) -> str:
        folder, name = self._open(path, make=False)
        try:
            with os.fdopen(os.open(name, os.O_RDONLY | _SAFE_FLAGS, dir_fd=folder), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ToolFailed(f"{path!r} is not a file.")
                content = file.read(self._max_bytes + 1)
        except OSError as error:
            raise _os_error(path, error) from error
        finally:
            os.close(folder)
        if len(content) > self._max_bytes:
            raise ToolFailed(f"{path!r} has more than {self._max_bytes} bytes.")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{path!r} is not a text file.") from error

    def _write(self, path: str, content: str) -> int:
        data = content.encode("utf-8", "replace")
        if len(data) > self._max_bytes:
            raise ToolFailed(f"The text has {len(data)} bytes; the limit is {self._max_bytes}.")
        folder, name = self._open(path, make=True)
        draft = f".{name}.{os.getpid()}.{id(data):x}"
        try:
            _require_regular_file(path, name, folder)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE_FLAGS, 0o644, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(draft, dir_fd=folder)
                raise
        except OSError as error:
            raise _os_error(path, error) from error
        finally:
            os.close(folder)
        return len(data)

    def _open(self, path: str, *, make: bool) -> tuple[int, str]:
        """Returns the handle of a file's folder and the file's name."""
        *folders, name = _path_parts(path)
        try:
            if make:
                self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _os_error(".", error) from error
        for part in folders:
            try:
                inner = _open_folder(part, handle, make=make)
            except OSError as error:
                raise _os_error(path, error) from error
            finally:
                os.close(handle)
            handle = inner
        return handle, name


def _open_folder(part: str, handle: int, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=handle)
    return os.open(part, os.O_RDONLY | os.O_DIRECTORY | _SAFE_FLAGS, dir_fd=handle)


def _require_regular_file(path: str, name: str, folder: int) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise ToolFailed(f"{path!r} is not a file.")


def _path_parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if not parts or ".." in parts or path.startswith(("/", "~")) or "\0" in path or "\\" in path:
        raise ToolFailed(f"{path[:200]!r} is not a path inside the folder. Write it like 'notes/today.txt'.")
    if max(map(len, parts)) > 200 or len(parts) > 32:
        raise ToolFailed("The path is too long.")
    return parts


def _os_error(path: str, error: OSError) -> ToolFailed:
    """Returns the error of a path, without the location of the folder."""
    return ToolFailed(f"{path!r}: {error.strerror or type(error).__name__}.")
