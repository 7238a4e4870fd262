"""Files inside one folder: links, `..` and devices lead nowhere, sizes are bounded."""

from __future__ import annotations

import asyncio
import os
import stat
from contextlib import suppress
from pathlib import Path

from astromesh.errors import ToolFailed


class Root:
    """A folder that its files do not lead out of.

    Every part of a path is opened from the folder before it, and never through a symbolic link: what changes
    between a check and its use changes nothing.
    """

    def __init__(self, folder: Path, most: int) -> None:
        self._folder, self._most = folder, most

    async def read(self, path: str) -> str:
        """The text of a file. Raises: ToolFailed: there is none, it is too large, or it is no text."""
        return await asyncio.to_thread(self._read, path)

    async def write(self, path: str, content: str) -> int:
        """Writes a whole file, making its folders; answers its bytes. Raises: ToolFailed."""
        return await asyncio.to_thread(self._write, path, content)

    def _read(self, path: str) -> str:
        folder, name = self._open(path, make=False)
        try:
            with os.fdopen(os.open(name, os.O_RDONLY | _SAFE, dir_fd=folder), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ToolFailed(f"{path!r} is no file.")
                content = file.read(self._most + 1)
        except OSError as error:
            raise _said(path, error) from error
        finally:
            os.close(folder)
        if len(content) > self._most:
            raise ToolFailed(f"{path!r} has more than {self._most} bytes.")
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise ToolFailed(f"{path!r} is no text.") from error

    def _write(self, path: str, content: str) -> int:
        data = content.encode("utf-8", "replace")
        if len(data) > self._most:
            raise ToolFailed(f"The text has {len(data)} bytes; {self._most} may be written.")
        folder, name = self._open(path, make=True)
        draft = f".{name}.{os.getpid()}.{id(data):x}"
        try:
            _refuse_odd(path, name, folder)
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o644, dir_fd=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.unlink(draft, dir_fd=folder)
                raise
        except OSError as error:
            raise _said(path, error) from error
        finally:
            os.close(folder)
        return len(data)

    def _open(self, path: str, *, make: bool) -> tuple[int, str]:
        """The handle of the folder that a file is in, and the file's name."""
        *folders, name = _parts(path)
        try:
            if make:
                self._folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _said(".", error) from error
        for part in folders:
            try:
                inner = _entered(part, handle, make=make)
            except OSError as error:
                raise _said(path, error) from error
            finally:
                os.close(handle)
            handle = inner
        return handle, name


_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def _entered(part: str, handle: int, *, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=handle)
    return os.open(part, os.O_RDONLY | os.O_DIRECTORY | _SAFE, dir_fd=handle)


def _refuse_odd(path: str, name: str, folder: int) -> None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise ToolFailed(f"{path!r} is no file.")


def _parts(path: str) -> tuple[str, ...]:
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if not parts or ".." in parts or path.startswith(("/", "~")) or "\0" in path or "\\" in path:
        raise ToolFailed(f"{path[:200]!r} is no path inside the folder; write it like 'notes/today.txt'.")
    if max(map(len, parts)) > 200 or len(parts) > 32:
        raise ToolFailed("The path is too long.")
    return parts


def _said(path: str, error: OSError) -> ToolFailed:
    """Without the folder's own place, which is nobody's affair."""
    return ToolFailed(f"{path!r}: {error.strerror or type(error).__name__}.")
