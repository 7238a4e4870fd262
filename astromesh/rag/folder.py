"""A folder of files as a source of documents. Everything here blocks: callers run it in a thread.

What a file is known by is its stamp (times, size, inode): a file is read again only when that has changed.
Files that cannot be documents are skipped with a warning that names them, once for each state of the file.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import structlog
import yaml

from astromesh.abc.rag import Document, Reader
from astromesh.errors import ConfigError
from astromesh.rag.markdown import front_matter, headings

MAX_FILE = 5 * 1024 * 1024
#: of files that a reader makes text of, e.g. PDF with its pictures
MAX_READ_FILE = 50 * 1024 * 1024
#: a longer block is no front matter but a document that begins with a rule
MAX_FRONT_MATTER = 4096

MEDIA_TYPES: Mapping[str, str] = {
    ".md": "text/markdown", ".markdown": "text/markdown", ".mdx": "text/markdown",
    ".txt": "text/plain", ".text": "text/plain", ".rst": "text/plain",
    ".html": "text/html", ".htm": "text/html", ".xhtml": "text/html", ".pdf": "application/pdf",
}  # fmt: skip
#: by media type: the `readers` plugin that makes Markdown of it
READERS: Mapping[str, str] = {"text/html": "html", "application/pdf": "pdf"}

Readers = Callable[[str], Reader]

log = structlog.get_logger("astromesh.rag")


class Unreadable(Exception):
    """A file that cannot be a document; says why."""


def no_reader(kind: str) -> Reader:
    """Raises: ConfigError: for those who give a folder no readers."""
    raise ConfigError(f"Nothing here reads {kind} files; give the pipeline 'readers'.")


class Folder:
    """The files of one folder.

    Args:
        path: the folder; one that does not exist holds no files.
        globs: which files below it, one pattern or several; hidden files and folders are never taken.
        prefix: stands before every document's id, for pipelines of several folders.
        readers: the reader of a kind of file; asked for when the first such file is met.
    """

    def __init__(
        self,
        path: Path,
        glob: str | Sequence[str] = "**/*.md",
        prefix: str = "",
        readers: Readers = no_reader,
    ) -> None:
        self.path = path
        self.globs = (glob,) if isinstance(glob, str) else tuple(glob)
        self._prefix = prefix
        self._readers = readers
        self._warned: dict[Path, str] = {}

    def scan(self) -> dict[str, str]:
        """Every file by the id of its document, with its stamp.

        Raises:
            MissingExtra: a file needs a reader that is not installed.
        """
        if not self.path.is_dir():
            self._warn(self.path, "missing", "there is no such folder")
            return {}
        root, found = self.path.resolve(), {}
        for path in self._files():
            try:
                stamp = _stamp(_named(path, self.path), root)
            except (OSError, Unreadable) as error:  # gone since it was listed, a link to nowhere or outside
                self._warn(path, str(error), str(error))
            else:
                name = self._prefix + path.relative_to(self.path).as_posix()
                reader = self._reader(MEDIA_TYPES.get(path.suffix.lower(), ""))
                found[name] = f"{reader.fingerprint} {stamp}" if reader else stamp
        return found

    def read(self, name: str, stamp: str) -> Document | None:
        """The document of a file by its id, or None where the file cannot be one."""
        path = self.path / name.removeprefix(self._prefix)
        try:
            kind = _media_type(path)
            reader = self._reader(kind)
            if reader is None:
                return document(name, decoded(_bytes(path, MAX_FILE)), kind)
            text, about = reader.read(_bytes(path, MAX_READ_FILE))
            return converted(name, text, about)
        except (OSError, ValueError, Unreadable) as error:
            self._warn(path, stamp, str(error))
            return None

    def owns(self, name: str) -> bool:
        """Whether an id can be one of this folder's."""
        return name.startswith(self._prefix)

    def _reader(self, kind: str) -> Reader | None:
        return self._readers(READERS[kind]) if kind in READERS else None

    def _files(self) -> list[Path]:
        try:
            listed = {path for pattern in self.globs for path in self.path.glob(pattern)}
            found = [path for path in listed if not _hidden(path, self.path)]
        except OSError as error:  # a folder below that may not be read
            self._warn(self.path, str(error), str(error))
            return []
        return sorted(path for path in found if path.is_symlink() or path.is_file())

    def _warn(self, path: Path, stamp: str, why: str) -> None:
        if self._warned.get(path) != stamp:
            self._warned[path] = stamp
            log.warning("document_skipped", file=_shown(path), why=why)


def folder_of(path: Path, readers: Readers) -> Folder:
    """A folder with every file that can be read, or the one file that a path names."""
    if path.is_dir():
        return Folder(path, [f"**/*{suffix}" for suffix in MEDIA_TYPES], readers=readers)
    return Folder(path.parent, glob.escape(path.name), readers=readers)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _named(path: Path, root: Path) -> Path:
    """A path whose name below the folder can be a document's id."""
    try:
        str(path.relative_to(root)).encode()
    except UnicodeEncodeError:
        raise Unreadable("its name is not UTF-8") from None
    return path


def _shown(path: Path) -> str:
    r"""A path as logs can hold it: bytes that are no UTF-8 as `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _stamp(path: Path, root: Path) -> str:
    about = path.stat()
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise Unreadable("it is a link that leads out of the folder")
    if not stat.S_ISREG(about.st_mode):
        raise Unreadable("it is no regular file")
    return f"{about.st_mtime_ns}.{about.st_ctime_ns}.{about.st_size}.{about.st_ino}"


def _media_type(path: Path) -> str:
    try:
        return MEDIA_TYPES[path.suffix.lower()]
    except KeyError:
        raise Unreadable(f"{path.suffix or 'a file without suffix'} is no supported type") from None


def _bytes(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise Unreadable(f"it has more than {most} bytes")
    return data


def decoded(data: bytes) -> str:
    """Raises: Unreadable: it is no text."""
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16")
        if b"\0" not in data:
            return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    raise Unreadable("it is binary or not UTF-8")


def document(name: str, text: str, kind: str) -> Document:
    """A document of Markdown or plain text: its title and what its front matter says."""
    if kind != "text/markdown":
        return Document(name, text, _from_name(name), kind)
    about = _front_matter(text)
    title = str(about.pop("title", "")) or _first_heading(text)
    return Document(name, text, title or _from_name(name), kind, about)


def titled(document: Document) -> Document:
    """With its first heading as its title, where it has none."""
    if document.title or document.media_type != "text/markdown":
        return document
    return replace(document, title=_first_heading(document.text))


def _first_heading(text: str) -> str:
    return next((heading.title for heading in headings(text) if heading.level == 1), "")


def converted(name: str, text: str, about: Mapping[str, Any]) -> Document:
    """A document of what a reader made of a file."""
    made = document(name, text, "text/markdown")
    kept = {key: value for key, value in about.items() if key != "title"}
    return replace(made, title=str(about.get("title") or made.title), metadata={**made.metadata, **kept})


def _from_name(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0].replace("-", " ").replace("_", " ") or name


def _front_matter(text: str) -> dict[str, Any]:
    """What a file's front matter says in plain values and lists of them; everything else is not kept."""
    block = text[: front_matter(text).end].strip().strip("-.")
    if not block or len(block) > MAX_FRONT_MATTER:
        return {}
    try:
        read = yaml.load(block, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date that is none
        return {}
    pairs = read.items() if isinstance(read, dict) else ()
    return {str(key): kept for key, value in pairs if (kept := _plain(value)) is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, list):  # YAML's aliases can put a list into itself
        return [one for one in map(_scalar, value[:100]) if one is not None]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    """JSON's own scalars; dates and endless numbers as text; anything else is None."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return str(value)
    if isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, date) else None
