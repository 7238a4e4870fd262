"""Which addresses are this machine's own, and what is printed for them."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from astromesh.api.auth import is_local_page, is_loopback
from astromesh.cli.commands.serve import announce, listen
from astromesh.config.folder import load
from astromesh.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "own"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
    ],
)
def test_loopback_is_told_from_what_others_can_reach(address: str, own: bool) -> None:
    assert is_loopback(address) is own


@pytest.mark.parametrize(
    ("origin", "own"),
    [
        ("http://localhost:3000", True),
        ("http://127.0.0.1", True),
        ("https://[::1]:8443", True),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("https://evil.example", False),
        ("null", False),
        ("", False),
        ("http://[::1", False),
        ("file://", False),
    ],
)
def test_pages_of_this_machine_are_told_from_others(origin: str, own: bool) -> None:
    assert is_local_page(origin) is own


@pytest.mark.parametrize("host", ["127.0.0..1", f"{'a' * 64}.example", "no-such-host.invalid"])
def test_a_host_that_is_none_is_told(host: str) -> None:
    with pytest.raises(ConfigError, match="the host does not resolve"):
        listen(host, 0, authenticated=True)


def test_a_project_of_workflows_alone_is_told_its_workflows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "workflows" / "invoices").mkdir(parents=True)
    configuration = load(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        announce(listener, (tmp_path, tmp_path), configuration, [])
        assert "No agent can run yet" in capsys.readouterr().err
        (tmp_path / "workflows" / "invoices" / "workflow.yaml").write_text("")
        announce(listener, (tmp_path, tmp_path), configuration, [])
    printed = capsys.readouterr()
    assert ("workflows: invoices" in printed.out, "/console/" in printed.out, printed.err) == (True, True, "")
