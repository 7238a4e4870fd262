"""Plugins: what is named is imported, once, and not on the event loop."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from astromesh.errors import MissingExtra
from astromesh.plugins import Deps, Plugins


class Plugin:
    class Options(BaseModel):
        size: int = 1

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> Self:
        return cls(options.size)


class Installed(Plugins):
    """Notes which threads import."""

    def __init__(self) -> None:
        super().__init__()
        self.importing: list[threading.Thread] = []

    def _import(self, group: str, name: str) -> type[Any]:
        self.importing.append(threading.current_thread())
        return Plugin


async def test_a_plugin_is_imported_once_and_beside_the_event_loop() -> None:
    """Some libraries take seconds to import, and runs go on meanwhile."""
    plugins = Installed()
    opened = [await plugins.open("tools", "heavy", {"size": size}, Deps()) for size in (2, 3)]
    assert [one.size for one in opened] == [2, 3]
    (importing,) = plugins.importing
    assert importing is not threading.current_thread()


async def test_what_is_loaded_or_given_in_python_needs_no_thread() -> None:
    plugins = Installed()
    plugins.load("tools", "heavy")
    await plugins.open("tools", "heavy", {}, Deps())
    assert plugins.importing == [threading.current_thread()]
    given = Plugins({"tools": {"light": Plugin}})
    assert (await given.open("tools", "light", {}, Deps())).size == 1


def distribution(folder: Path, name: str, points: str) -> Path:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    return folder


def test_plugins_of_other_distributions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy of a distribution on the path counts, as for imports; other groups are not ours."""
    older = distribution(tmp_path / "older", "extra", "[astromesh.tools]\nslow = old:Tool\ngone = old:Tool\n")
    mixed = "[astromesh.tools]\nslow = new:Tool\n[tools]\nno = new:Tool\n"
    newer = distribution(tmp_path / "newer", "extra", mixed)
    distribution(newer, "foreign", "[console_scripts]\nforeign = foreign:main\n")
    for folder in (older, newer):
        monkeypatch.syspath_prepend(str(folder))
    plugins = Plugins()
    assert {"slow", "webhook"} <= {*plugins.names("tools")}
    assert not {"gone", "no"} & {*plugins.names("tools")}
    assert plugins.origin("tools", "slow") == "new:Tool extra==1.0"


def test_a_renamed_group_is_accepted_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = distribution(tmp_path, "extra", "[astromesh.desks]\nmine = mine:Worker\n")
    monkeypatch.syspath_prepend(str(folder))
    with capture_logs() as logged:
        assert Plugins().origin("inbox_workers", "mine") == "mine:Worker extra==1.0"
        assert Plugins({"desks": {"yours": Plugin}}).load("inbox_workers", "yours") is Plugin
    assert [(one["event"], one["group"], one["use"], one["distribution"]) for one in logged] == [
        ("plugin_group_renamed", "astromesh.desks", "astromesh.inbox_workers", "extra"),
        ("plugin_group_renamed", "astromesh.desks", "astromesh.inbox_workers", ""),
    ]


@pytest.mark.parametrize("target", ["astromesh.gone:Tool", "astromesh.tools.base:Gone"])
def test_a_plugin_whose_class_is_gone_says_to_reinstall(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(
        str(distribution(tmp_path, "extra", f"[astromesh.tools]\nmoved = {target}\n"))
    )
    with pytest.raises(MissingExtra, match=f"registered as {target}, which does not exist. Reinstall"):
        Plugins().load("tools", "moved")
