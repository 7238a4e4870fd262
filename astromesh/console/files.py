"""The files of the web console: its page, its modules, and their libraries.

`vendor/` holds the libraries, which `scripts/console_libraries.py` places. A page loads no file from anywhere
else.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from msgspec import Struct

#: Browsers accept scripts, styles and data of this server, and nothing inline (W3C, CSP Level 3).
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PACKAGE = Path(str(files("astromesh.console")))
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: the form of a served file's path; it leads to nothing outside the package
_PATH = re.compile(r"(?:(?:pages|vendor)/)?[a-z-]{1,40}\.(?:css|html|js|svg)")
_PAGE, _WITHOUT_LIBRARIES = "index.html", "without-libraries.html"


class ConsoleFile(Struct, frozen=True):
    """A file as it is sent: its bytes, the same compressed, its media type, an entity tag of its content."""

    body: bytes
    compressed: bytes
    media_type: str
    etag: str


def find(path: str) -> ConsoleFile | None:
    """Returns a file by its path below `/console/`, or None if there is no such file.

    The empty path is the page. Without its libraries the page says which command brings them.
    """
    if not path:
        path = _PAGE if has_libraries() else _WITHOUT_LIBRARIES
    file = _PACKAGE / path
    if not _PATH.fullmatch(path) or not file.is_file():
        return None
    return _load(file, file.stat().st_mtime_ns)


def has_libraries() -> bool:
    return (_PACKAGE / "vendor" / "preact.js").is_file()


def stored_compressed(name: str) -> bytes | None:
    """Returns a library that is stored compressed (gzip), or None without it."""
    file = _PACKAGE / "vendor" / f"{name}.gz"
    return file.read_bytes() if file.is_file() else None


@lru_cache(maxsize=128)
def _load(file: Path, changed: int) -> ConsoleFile:
    """Reads and compresses a file once for each of its versions."""
    body = file.read_bytes()
    return ConsoleFile(
        body,
        gzip.compress(body, 6, mtime=0),
        _MEDIA_TYPES[file.suffix],
        f'"{hashlib.sha256(body).hexdigest()[:24]}"',
    )
