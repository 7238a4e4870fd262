"""Documents from the web: pages of `sources` are fetched again after a while and kept in the data folder.

A page is asked for with the `ETag` and `Last-Modified` of its stored version, so that an unchanged one costs
an answer without a body. Its bytes and what is known of it are files of a cache, each replaced as a whole: a
process that dies loses at most the page that it was reading. `scan` and `read` are those of a folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec

from astromesh.errors import NetError
from astromesh.knowledge.base import SOURCE_CODE, Document, DocumentReader
from astromesh.knowledge.loaders import (
    MAX_FILE,
    MAX_READ_FILE,
    MEDIA_TYPES,
    READERS,
    Readers,
    UnreadableFile,
    decode_declared,
    read_data,
)
from astromesh.logs import get_logger
from astromesh.net.http import Http, HttpResponse
from astromesh.telemetry.clock import Clock

#: seconds of one request; pages that are fetched at once; seconds after which a failed one is tried again
_SECONDS, _AT_ONCE, _RETRY = 30.0, 4, 300.0
_ACCEPTED = "text/html, text/markdown, text/plain, text/csv, application/pdf, */*;q=0.5"
_TYPES: Mapping[str, str] = {
    "application/xhtml+xml": "text/html",
    "text/x-markdown": "text/markdown",
    "text/tab-separated-values": "text/csv",
    **{kind: kind for kind in MEDIA_TYPES.values() if kind != SOURCE_CODE},
}
#: what servers say of files that they do not know
_UNKNOWN = ("", "text/plain", "application/octet-stream", "binary/octet-stream")
_GONE = (404, 410)
log = get_logger("astromesh.rag")


class WebPage(NamedTuple):
    """A page of the web. Args: every: seconds between two requests."""

    url: str
    every: float


class _Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of a page.

    Args:
        checked_at: when the server answered, seconds since the epoch.
        sha256: of the body, which names its file; empty if the page does not exist.
        media_type: one of `READERS` or a text; empty if its type is not supported.
    """

    url: str
    checked_at: float
    sha256: str = ""
    media_type: str = ""
    charset: str = ""
    etag: str = ""
    modified: str = ""


class WebPages:
    """The pages of one pipeline; `update` fetches them, the rest reads the cache.

    Args:
        pages: each with the seconds between two requests.
        folder: of the cache; nothing else is in it.
        readers: returns the reader of a kind of file.
    """

    def __init__(
        self, pages: Iterable[tuple[str, float]], folder: Path, http: Http, readers: Readers, clock: Clock
    ) -> None:
        self._pages = {url: WebPage(url, every) for url, every in pages}
        self._folder, self._http, self._readers, self._clock = folder, http, readers, clock
        self._stored: dict[str, _Stored] | None = None
        #: time of the newest change of the folder that was read
        self._seen = 0
        self._next_try: dict[str, float] = {}
        self._warnings: dict[str, str] = {}
        self._lock, self._slots = asyncio.Lock(), asyncio.Semaphore(_AT_ONCE)

    async def update(self) -> None:
        """Fetches the pages that are due. One that fails is logged, and its last version stays."""
        async with self._lock:
            stored = self._stored = await asyncio.to_thread(self._load)
            due = [page for page in self._pages.values() if self._is_due(page, stored.get(page.url))]
            await asyncio.gather(*(self._fetch(page, stored) for page in due))

    def scan(self) -> dict[str, str]:
        """Returns the stamps of the stored pages by their URLs.

        Raises:
            MissingExtra: a page needs a reader that is not installed.
        """
        found = {}
        for url, one in (self._stored or {}).items():
            if one.sha256:
                reader = self._reader(one.media_type)
                stamp = f"{one.sha256} {one.media_type} {one.charset}"
                found[url] = f"{reader.fingerprint} {stamp}" if reader else stamp
        return found

    def read(self, name: str, stamp: str) -> Document | None:
        """Returns the document of a page, None if the page cannot be a document."""
        one = (self._stored or {})[name]
        try:
            if not one.media_type:
                raise UnreadableFile("it is not of a supported type")
            data = (self._folder / _body_name(one)).read_bytes()
            if one.media_type.startswith("text/"):
                data = _as_utf8(data, one.charset)
            document = read_data(name, data, one.media_type, self._reader(one.media_type))
        except (OSError, ValueError, UnreadableFile) as error:
            self._warn(name, str(error))
            return None
        return replace(document, metadata={**document.metadata, "url": name})

    def owns(self, name: str) -> bool:
        """Whether an id is that of a page."""
        return name in self._pages

    def waiting(self) -> frozenset[str]:
        """The URLs of pages that are not fetched yet: their documents stay if there are any."""
        return frozenset(self._pages) - (self._stored or {}).keys()

    def _reader(self, kind: str) -> DocumentReader | None:
        return self._readers(READERS[kind]) if kind in READERS else None

    def _is_due(self, page: WebPage, stored: _Stored | None) -> bool:
        now = self._clock.now()
        if now < self._next_try.get(page.url, 0.0):
            return False
        return stored is None or not stored.checked_at <= now < stored.checked_at + page.every

    async def _fetch(self, page: WebPage, stored: dict[str, _Stored]) -> None:
        before = stored.get(page.url)
        try:
            async with self._slots:
                answer = await self._http.fetch_untrusted(
                    "GET", page.url, headers=_conditions(before), timeout=_SECONDS, limit=MAX_READ_FILE
                )
            stored[page.url] = await asyncio.to_thread(self._store, page, answer, before)
        except (NetError, OSError, UnreadableFile) as error:
            self._next_try[page.url] = self._clock.now() + min(page.every, _RETRY)
            self._warn(page.url, str(error))

    def _store(self, page: WebPage, answer: HttpResponse, before: _Stored | None) -> _Stored:
        """Stores an answer, and returns what is known of the page now.

        Raises:
            UnreadableFile: the server answers with another status.
            OSError: it cannot be written.
        """
        made = self._after(page, answer, before)
        self._folder.mkdir(parents=True, exist_ok=True)
        if answer.status == 200:
            _write(self._folder / _body_name(made), answer.body)
        _write(self._folder / f"{_digest(page.url)}.json", msgspec.json.encode(made))
        if before is not None and before.sha256 and _body_name(before) != _body_name(made):
            (self._folder / _body_name(before)).unlink(missing_ok=True)
        return made

    def _after(self, page: WebPage, answer: HttpResponse, before: _Stored | None) -> _Stored:
        now = self._clock.now()
        if answer.status == 304 and before is not None:
            return msgspec.structs.replace(before, checked_at=now)
        if answer.status in _GONE:
            self._warn(page.url, f"the server answers {answer.status}: the page does not exist")
            return _Stored(page.url, now)
        if answer.status != 200:
            raise UnreadableFile(f"the server answers {answer.status}")
        kind, charset = _content_type(answer.headers.get("content-type", ""), page.url)
        if kind not in READERS and len(answer.body) > MAX_FILE:
            raise UnreadableFile(f"it has more than {MAX_FILE} bytes")
        self._warnings.pop(page.url, None)
        return _Stored(
            page.url, now, hashlib.sha256(answer.body).hexdigest(), kind, charset,
            answer.headers.get("etag", "")[:1000], answer.headers.get("last-modified", "")[:100],
        )  # fmt: skip

    def _load(self) -> dict[str, _Stored]:
        """Reads what is known of the pages, if this or another process has changed it."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:  # nothing was fetched yet
            return {}
        if self._stored is not None and changed == self._seen:
            return self._stored
        self._seen, found = changed, {}
        for url in self._pages:
            try:
                one = msgspec.json.decode((self._folder / f"{_digest(url)}.json").read_bytes(), type=_Stored)
            except (OSError, msgspec.DecodeError):
                continue  # it is fetched again
            if not one.sha256 or (self._folder / _body_name(one)).is_file():
                found[url] = one
        return found

    def _warn(self, url: str, why: str) -> None:
        if self._warnings.get(url) != why:
            self._warnings[url] = why
            log.warning("page_skipped", url=url, why=why)


def _conditions(before: _Stored | None) -> dict[str, str]:
    headers = {"accept": _ACCEPTED}
    if before is not None and before.sha256:
        if before.etag:
            headers["if-none-match"] = before.etag
        if before.modified:
            headers["if-modified-since"] = before.modified
    return headers


def _content_type(header: str, url: str) -> tuple[str, str]:
    """The media type of a page, empty if it is not supported, and its charset."""
    message = Message()
    message["content-type"] = header or "application/octet-stream"
    kind, charset = message.get_content_type(), message.get_param("charset")
    suffix = PurePosixPath(unquote(urlsplit(url).path)).suffix.lower()
    if kind in _UNKNOWN:  # raw files are often served as plain text
        kind = MEDIA_TYPES.get(suffix, "text/plain" if kind == "text/plain" else "")
    else:
        kind = _TYPES.get(kind, "")
    return kind, charset.lower() if isinstance(charset, str) else ""


def _as_utf8(data: bytes, charset: str) -> bytes:
    """Text in the encoding that the server named, as UTF-8 with its mark, which overrules the text itself."""
    if charset in ("", "utf-8", "utf8", "us-ascii"):
        return data
    text = decode_declared(data, charset)
    return data if text is None else b"\xef\xbb\xbf" + text.encode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _body_name(one: _Stored) -> str:
    return f"{_digest(one.url)}.{one.sha256[:32]}"


def _write(path: Path, data: bytes) -> None:
    """Replaces a file as a whole."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(data)
    draft.replace(path)
