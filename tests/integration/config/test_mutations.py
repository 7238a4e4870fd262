"""R15: whatever is done to a good file: an error with a line or a sound load, never a crash or a hang."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astromesh.config.folder import Configuration, load
from astromesh.config.parser import MAX_BYTES
from tests.unit.config.samples import AGENT, ENV, OTHERS, FewPlugins, write_good

FILES = {"agents/support.agent.yaml": AGENT, **dict(OTHERS.values())}
#: each line nine times the one above
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"\n".join(
    b"%c: &%c [%s]" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(20)
)
QUICK = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=30),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_good(tmp_path_factory.mktemp("config"))


def check(folder: Path, name: str, raw: bytes) -> Configuration:
    """Loads with one file changed; every fault has a file, and a line where it is about this file."""
    path, good = folder / name, (folder / name).read_bytes()
    path.write_bytes(raw)
    try:
        found = load(folder, env=ENV, resolver=FewPlugins())
    finally:
        path.write_bytes(good)
    for fault in (*found.every_fault(), *found.warnings):
        assert fault.file
        assert fault.message
        assert fault.line > 0
        assert fault.column > 0
        if Path(fault.file) == path:
            assert fault.line <= raw.count(b"\n") + raw.count(b"\r") + 2
    return found


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into plain data, the root not counted."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in items for path in ((*at, key), *paths_of(item, (*at, key)))]


def parent_of(data: Any, path: tuple[Any, ...]) -> Any:
    for step in path[:-1]:
        data = data[step]
    return data


@given(name=st.sampled_from(sorted(FILES)), data=st.data())
@QUICK
def test_a_value_of_another_type_is_a_fault_or_fine(folder: Path, name: str, data: st.DataObject) -> None:
    whole = yaml.safe_load(FILES[name])
    path = data.draw(st.sampled_from(paths_of(whole)))
    parent_of(whole, path)[path[-1]] = data.draw(values)
    check(folder, name, json.dumps(whole, ensure_ascii=True).replace("${", "$${").encode())


@given(name=st.sampled_from(sorted(FILES)), data=st.data())
@QUICK
def test_keys_that_are_gone_renamed_or_added_are_told(folder: Path, name: str, data: st.DataObject) -> None:
    whole = yaml.safe_load(FILES[name])
    path = data.draw(st.sampled_from([p for p in paths_of(whole) if isinstance(p[-1], str)]))
    parent = parent_of(whole, path)
    how = data.draw(st.sampled_from(["delete", "rename", "add"]))
    key = data.draw(st.text(min_size=1, max_size=8))
    if how != "add":
        moved = parent.pop(path[-1])
    if how != "delete":
        parent[key] = moved if how == "rename" else data.draw(values)
    check(folder, name, yaml.safe_dump(whole, allow_unicode=True).encode())


@given(name=st.sampled_from(sorted(FILES)), data=st.data())
@QUICK
def test_lines_that_are_doubled_cut_or_moved_are_told(folder: Path, name: str, data: st.DataObject) -> None:
    lines = FILES[name].splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    match data.draw(st.sampled_from(["double", "delete", "cut", "indent", "swap"])):
        case "double":
            lines.insert(at, lines[at])
        case "delete":
            del lines[at]
        case "cut":
            lines[at:] = [lines[at][: data.draw(st.integers(0, len(lines[at])))]]
        case "indent":
            lines[at] = data.draw(st.sampled_from([" ", "\t", "    "])) + lines[at]
        case "swap":
            other = data.draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
    check(folder, name, "".join(lines).encode())


@given(name=st.sampled_from(sorted(FILES)), data=st.data())
@QUICK
def test_bytes_that_are_changed_are_told_or_harmless(folder: Path, name: str, data: st.DataObject) -> None:
    raw = bytearray(FILES[name].encode())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [b"&a ", b"*a", b"!!x ", b"${", b"${X}", b"\n", b"? ", b"- ", b": ", b"{", b"["]
            )
        )
    check(folder, name, bytes(raw))


@given(raw=st.binary(max_size=300))
@QUICK
def test_any_bytes_at_all_are_a_fault(folder: Path, raw: bytes) -> None:
    assert check(folder, "agents/support.agent.yaml", raw).broken


@pytest.mark.parametrize("name", sorted(FILES))
@pytest.mark.parametrize(
    "raw",
    [
        b"[" * 500_000,
        b"{a: " * 200_000,
        b"- " * 400_000,
        b"a: &a [*a]",
        BOMB,
        b"a: 1\n" * 100_000,
        b"a" * MAX_BYTES,
        b"x" * 10 * MAX_BYTES,
        b"%TAG !a! b\n" * 90_000,
        b"a: '" + b"x\n\n" * 300_000 + b"'",
        b"- {a: 1, b: [c]}\n" * 60_000,
        b"a: ${X}\n" * 100_000,
    ],
    ids=[
        "lists", "mappings", "dashes", "cycle", "bomb", "twins",
        "word", "huge", "tags", "folded", "many", "unset",
    ],
)  # fmt: skip
def test_no_input_makes_it_hang(folder: Path, name: str, raw: bytes) -> None:
    """The suite's time limit is what fails here."""
    assert check(folder, name, raw).every_fault()
