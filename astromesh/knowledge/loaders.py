"""Documents from folders and from callers: a file or an upload becomes Markdown or plain text.

Everything here blocks; callers run it in a thread. A file is identified by its stamp (times, size, inode) and
is read again only when the stamp has changed. Files that cannot be documents are skipped with one warning
each.

The reader `code` makes Markdown of source code, with each definition at the left margin under a heading of
its own. It knows no language: a definition begins at the left margin with a word such as `def`, `class`,
`func` or `export`. What stands before it without a blank line, e.g. its comment or decorator, belongs to it.
"""

from __future__ import annotations

import codecs
import glob
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from astromesh.errors import ConfigError, InvalidInput, is_failure
from astromesh.knowledge.base import DOCX, PPTX, SOURCE_CODE, XLSX, Document, DocumentReader
from astromesh.knowledge.chunking import front_matter, headings
from astromesh.knowledge.tables import decode
from astromesh.logs import get_logger
from astromesh.types import JsonObject

MAX_FILE = 5 * 1024 * 1024
#: bytes of files that a reader converts, e.g. PDF with its pictures
MAX_READ_FILE = 50 * 1024 * 1024
#: characters; a longer block is a document that begins with a rule, and no front matter
MAX_FRONT_MATTER = 4096
_CODE_SUFFIXES = (
    ".py",
    ".js",
    ".mjs",
    ".jsx",
    ".ts",
    ".tsx",
    ".java",
    ".kt",
    ".go",
    ".rs",
    ".c",
    ".h",
    ".cc",
    ".cpp",
    ".hpp",
    ".cs",
    ".rb",
    ".php",
    ".swift",
    ".scala",
    ".lua",
    ".r",
    ".jl",
    ".sh",
    ".sql",
)
MEDIA_TYPES: Mapping[str, str] = {
    ".md": "text/markdown", ".markdown": "text/markdown", ".mdx": "text/markdown",
    ".txt": "text/plain", ".text": "text/plain", ".rst": "text/plain",
    ".html": "text/html", ".htm": "text/html", ".xhtml": "text/html", ".pdf": "application/pdf",
    ".csv": "text/csv", ".tsv": "text/csv", ".docx": DOCX, ".pptx": PPTX, ".xlsx": XLSX,
    **dict.fromkeys(_CODE_SUFFIXES, SOURCE_CODE),
}  # fmt: skip
#: the `readers` plugin of a media type
READERS: Mapping[str, str] = {
    "text/html": "html", "application/pdf": "pdf", "text/csv": "csv", SOURCE_CODE: "code",
    DOCX: "docx", PPTX: "pptx", XLSX: "xlsx",
}  # fmt: skip
#: codecs of Python that no page is written in; the first takes quadratic time
_NO_CHARSETS = frozenset({"punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7"})
Readers = Callable[[str], DocumentReader]
log = get_logger("astromesh.rag")


class UnreadableFile(Exception):
    """A file cannot be a document; the message says why."""


def no_reader(kind: str) -> DocumentReader:
    """Raises: ConfigError: always; the default of folders without readers."""
    raise ConfigError(f"No reader for {kind} files is configured; give the pipeline 'readers'.")


class Folder:
    """The files of one folder.

    Args:
        path: the folder; a missing folder has no files.
        globs: patterns of the files below it; hidden files and folders are never read.
        prefix: of every document's id, for pipelines of several folders.
        readers: returns the reader of a kind of file; called with the first such file.
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
        self._warnings: dict[Path, str] = {}

    def scan(self) -> dict[str, str]:
        """Returns the stamps of all files by the ids of their documents.

        Raises:
            MissingExtra: a file needs a reader that is not installed.
        """
        if not self.path.is_dir():
            self._warn(self.path, "missing", "there is no such folder")
            return {}
        root, found = self.path.resolve(), {}
        for path in self._files():
            try:
                stamp = _stamp(_check_name(path, self.path), root)
            except (
                OSError,
                UnreadableFile,
            ) as error:  # deleted since it was listed, or a link to nowhere or outside
                self._warn(path, str(error), str(error))
            else:
                name = self._prefix + path.relative_to(self.path).as_posix()
                reader = self._reader(MEDIA_TYPES.get(path.suffix.lower(), ""))
                found[name] = f"{reader.fingerprint} {stamp}" if reader else stamp
        return found

    def read(self, name: str, stamp: str) -> Document | None:
        """Returns the document of a file by its id, None if the file cannot be a document."""
        path = self.path / name.removeprefix(self._prefix)
        try:
            kind = _media_type(path)
            reader = self._reader(kind)
            data = _read_bytes(path, MAX_READ_FILE if reader else MAX_FILE)
            return read_data(name, data, kind, reader)
        except (OSError, ValueError, UnreadableFile) as error:
            self._warn(path, stamp, str(error))
            return None

    def owns(self, name: str) -> bool:
        """Whether an id can belong to this folder."""
        return name.startswith(self._prefix)

    def _reader(self, kind: str) -> DocumentReader | None:
        return self._readers(READERS[kind]) if kind in READERS else None

    def _files(self) -> list[Path]:
        try:
            list(self.path.iterdir())  # a glob passes over what it may not read
            listed = {path for pattern in self.globs for path in self.path.glob(pattern)}
            found = [path for path in listed if not _hidden(path, self.path)]
        except OSError as error:
            self._warn(self.path, str(error), str(error))
            return []
        return sorted(path for path in found if path.is_symlink() or path.is_file())

    def _warn(self, path: Path, stamp: str, why: str) -> None:
        if self._warnings.get(path) != stamp:
            self._warnings[path] = stamp
            log.warning("document_skipped", file=_printable(path), why=why)


def folder_of(path: Path, readers: Readers) -> Folder:
    """A folder with every file that can be read, or the one file that a path names."""
    if path.is_dir():
        return Folder(path, [f"**/*{suffix}" for suffix in MEDIA_TYPES], readers=readers)
    return Folder(path.parent, glob.escape(path.name), readers=readers)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def _check_name(path: Path, root: Path) -> Path:
    """Returns a path whose name below the folder can be a document's id."""
    try:
        str(path.relative_to(root)).encode()
    except UnicodeEncodeError:
        raise UnreadableFile("its name is not UTF-8") from None
    return path


def _printable(path: Path) -> str:
    r"""A path for logs: bytes that are not UTF-8 as `\xff`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _stamp(path: Path, root: Path) -> str:
    status = path.stat()
    if path.is_symlink() and not path.resolve().is_relative_to(root):
        raise UnreadableFile("it is a link that leads out of the folder")
    if not stat.S_ISREG(status.st_mode):
        raise UnreadableFile("it is not a regular file")
    return f"{status.st_mtime_ns}.{status.st_ctime_ns}.{status.st_size}.{status.st_ino}"


def _media_type(path: Path) -> str:
    try:
        return MEDIA_TYPES[path.suffix.lower()]
    except KeyError:
        raise UnreadableFile(f"{path.suffix or 'a file without suffix'} is not a supported type") from None


def _read_bytes(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnreadableFile(f"it has more than {limit} bytes")
    return data


def decode_text(data: bytes) -> str:
    """Raises: UnreadableFile: it is not text."""
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16")
        if b"\0" not in data:
            return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    raise UnreadableFile("it is binary or not UTF-8")


def decode_declared(data: bytes, charset: str) -> str | None:
    """Returns a text in the encoding that a page declares; None: no page has it, or this one does not."""
    try:
        return None if codecs.lookup(charset).name in _NO_CHARSETS else data.decode(charset)
    except (LookupError, UnicodeError):
        return None


def read_data(name: str, data: bytes, kind: str, reader: DocumentReader | None) -> Document:
    """Returns the document of a file's bytes.

    Args:
        reader: of this kind of file; None for text.

    Raises:
        UnreadableFile: it is not text, or the reader cannot read it.
    """
    if reader is None:
        return parse_document(name, decode_text(data), kind)
    return from_markdown(name, *_as_markdown(reader, data))


def parse_document(name: str, text: str, kind: str) -> Document:
    """A document of Markdown or plain text, with its title and its front matter as metadata."""
    if kind != "text/markdown":
        return Document(name, text, _from_name(name), kind)
    values = _front_matter(text)
    title = str(values.pop("title", "")) or _first_heading(text)
    return Document(name, text, title or _from_name(name), kind, values)


def with_title(document: Document) -> Document:
    """The document with its first heading as its title if it has no title."""
    if document.title or document.media_type != "text/markdown":
        return document
    return replace(document, title=_first_heading(document.text))


def _first_heading(text: str) -> str:
    return next((heading.title for heading in headings(text) if heading.level == 1), "")


def from_markdown(name: str, text: str, metadata: Mapping[str, Any]) -> Document:
    """A document of the Markdown and metadata that a reader returned."""
    made = parse_document(name, text, "text/markdown")
    others = {key: value for key, value in metadata.items() if key != "title"}
    return replace(made, title=str(metadata.get("title") or made.title), metadata={**made.metadata, **others})


def _from_name(name: str) -> str:
    return name.rpartition("/")[2].rpartition(".")[0].replace("-", " ").replace("_", " ") or name


def _front_matter(text: str) -> dict[str, Any]:
    """The plain values, and lists of plain values, of a file's front matter; other values are dropped."""
    block = text[: front_matter(text).end].strip().strip("-.")
    if not block or len(block) > MAX_FRONT_MATTER:
        return {}
    try:
        read = yaml.load(block, yaml.CSafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: an impossible date
        return {}
    pairs = read.items() if isinstance(read, dict) else ()
    return {str(key): plain for key, value in pairs if (plain := _plain_value(value)) is not None}


def _plain_value(value: Any) -> Any:
    if isinstance(value, list):  # with aliases, a list of YAML can contain itself
        return [one for one in map(_scalar, value[:100]) if one is not None]
    return _scalar(value)


def _scalar(value: Any) -> Any:
    """Returns a scalar of JSON; dates and very large numbers as text; None for all other values."""
    if isinstance(value, int) and abs(value) >= 2**63:
        return str(value)
    if isinstance(value, bool | int | float | str):
        return value
    return str(value) if isinstance(value, date) else None


# -- documents of callers ------------------------------------------------------------------------------------


def load_document(document: Document, readers: Readers) -> Document:
    """Returns the document as Markdown or plain text, with a title; the caller's own metadata win.

    Raises:
        InvalidInput: it is broken, too large, or not what its media type says.
        MissingExtra: it needs a reader that is not installed.
    """
    try:
        if document.media_type in READERS:
            return _read_file(document, readers)
        if document.data:
            document = replace(document, text=decode_text(document.data), data=b"")
    except (ValueError, UnreadableFile) as error:
        raise InvalidInput(f"The document {document.id!r} cannot be read: {error}.") from error
    return with_title(document)


def _read_file(document: Document, readers: Readers) -> Document:
    data = document.data or document.text.encode()
    if len(data) > MAX_READ_FILE:
        raise UnreadableFile(f"it has more than {MAX_READ_FILE} bytes")
    made = from_markdown(document.id, *_as_markdown(readers(READERS[document.media_type]), data))
    values = {**made.metadata, **document.metadata}
    return replace(made, title=document.title or made.title, metadata=values)


def _as_markdown(reader: DocumentReader, data: bytes) -> tuple[str, JsonObject]:
    """Returns text and metadata of a file.

    Raises:
        UnreadableFile: whatever the reader raised, so that a file holds back no other one.
    """
    try:
        return reader.read(data)
    except BaseException as error:  # foreign code: a reader and what it parses may raise anything
        if not is_failure(error):
            raise
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise UnreadableFile(reason) from error


# -- source code ---------------------------------------------------------------------------------------------


_DEFINITION = re.compile(
    r"(?:(?:export|default|public|private|protected|internal|static|final|abstract|async|pub(?:\([a-z]+\))?|unsafe|open"
    r"|data|sealed|override|inline|extern|declare)\s+)*"
    r"(?:def|class|func|function|fn|interface|type|struct|enum|trait|impl|module|object|record|namespace|sub|proc"
    r"|const|let|var|CREATE)\b[^\n]*"
)
_LONGEST_HEADING = 100
#: at the left margin these begin what follows
_LEADS = ("@", "#", "//", "/*", " *", "*", "--", '"""')


class CodeReader:
    """The reader `code`."""

    fingerprint = "code/1"

    def read(self, data: bytes) -> tuple[str, JsonObject]:
        lines = decode(data).replace("\r\n", "\n").split("\n")
        if not any(map(str.strip, lines)):
            raise ValueError("it is empty")
        starts = list(_starts(lines))
        parts = zip([0, *starts], [*starts, len(lines)], strict=True)
        return "\n\n".join(filter(None, (_section(lines[start:end]) for start, end in parts))), {}


def _starts(lines: list[str]) -> Iterator[int]:
    """The lines at which definitions begin, with what leads to them."""
    free = 0  # the line behind the definition before
    for number, line in enumerate(lines):
        if not _DEFINITION.match(line):
            continue
        start = number
        while start > free and lines[start - 1].startswith(_LEADS):
            start -= 1
        free = number + 1
        if start:
            yield start


def _section(lines: list[str]) -> str:
    text = "\n".join(lines).strip("\n")
    if not text.strip():
        return ""
    named = next((found[0] for line in lines if (found := _DEFINITION.match(line))), "")
    heading = f"## {' '.join(named.rstrip(' {:').split())[:_LONGEST_HEADING]}\n\n" if named else ""
    fence = "~" * max(3, *(len(run) + 1 for run in re.findall(r"^~{3,}", text, re.MULTILINE)), 3)
    return f"{heading}{fence}\n{text}\n{fence}"
