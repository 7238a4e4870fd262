"""Who may import whom: the table, held against the code.

A package of `astromesh/` (or one of its top-level modules) may import itself and what its row names. A new
package needs a row; a row that is in a good house's way is changed here, in the commit that needs it, which
says why.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "astromesh"

GROUND = ("errors", "growing", "quick", "unseen")
RECORDS = ("tokens", "types", *GROUND)
SEAMS = ("abc", *RECORDS)
NODES = ("node", "telemetry", *SEAMS)
GRAPHS = ("graph", *NODES)
PARTS = ("workflow", "orchestration", "core", "plugins", *GRAPHS)
HOUSE = ("runtime", "config", "net", "storage", *PARTS)
ADAPTER = ("net", "retrieval", "storage", "telemetry", *SEAMS)

MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    # the ground
    "errors": (),
    "growing": (),
    "quick": (),
    # what nobody sees: guardrails look through it, and a query of nothing else is blank
    "unseen": (),
    "types": GROUND,
    "tokens": ("types", *GROUND),
    "abc": RECORDS,
    "telemetry": SEAMS,
    "config": RECORDS,
    "net": SEAMS,
    "storage": SEAMS,
    # what semantic memory and knowledge both search with, so that neither imports the other
    "retrieval": RECORDS,
    # tokens: checked by the API, which reaches it through plugins, and by guarded MCP servers
    "identity": ("net", *SEAMS),
    # the engines
    "node": ("telemetry", *SEAMS),
    "graph": NODES,
    "plugins": SEAMS,
    "core": ("config", *GRAPHS),
    "orchestration": GRAPHS,
    "workflow": ("config", "core", "net", "plugins", "retrieval", *GRAPHS),
    # the house
    "runtime": ("config", "net", "storage", *PARTS),
    "api": HOUSE,
    "cli": ("api", *HOUSE),
    # the adapters: siblings never import one another, the runtime reaches them through plugins
    "channels": ADAPTER,
    "durable": ADAPTER,
    "embedders": ADAPTER,
    "guardrails": ADAPTER,
    "mcp": ("identity", *ADAPTER),
    "memory": ADAPTER,
    "providers": ADAPTER,
    "rag": ADAPTER,
    "tools": ADAPTER,
    # imported by tests only
    "testing": ("net", "node", "plugins", "telemetry", *SEAMS),
}

# The lazy face of the package, and the commands, import when they are called: start-up pays for what is used.
IMPORTS_WHEN_CALLED = ("astromesh", "astromesh.cli", "astromesh.api.app")
# The runtime loads workflows with the first one: a sixth of our part of the start; most servers have none.
NAMES_WITHOUT_LOADING = ("astromesh.runtime.engine",)


@dataclass(frozen=True)
class Module:
    """A module: dotted name, file, syntax tree."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def home(self) -> str:
        """The row of the table it belongs to; empty for `astromesh/__init__.py`."""
        return home_of(self.name)

    def at(self, node: ast.stmt) -> str:
        return f"{self.path.relative_to(ROOT)}:{node.lineno}"


def home_of(name: str) -> str:
    return [*name.split("."), ""][1]


@cache
def modules() -> Mapping[str, Module]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = Module(name, path, ast.parse(path.read_text(), str(path)))
    return found


def imports_of(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every import of something of ours: the statement, and the module it names."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names if ours(alias.name))
        elif isinstance(node, ast.ImportFrom) and node.module and ours(node.module):
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield node, submodule if submodule in modules() else node.module


def ours(name: str) -> bool:
    return name == "astromesh" or name.startswith("astromesh.")


def every_import() -> Iterator[tuple[Module, ast.stmt, str]]:
    for module in modules().values():
        for node, imported in imports_of(module):
            yield module, node, imported


# -- the table -----------------------------------------------------------------------------------------------


def test_every_package_has_a_row() -> None:
    homes = {module.home for module in modules().values()} - {"", "__main__"}
    assert homes <= MAY_IMPORT.keys()


def test_imports_point_down() -> None:
    wrong = [
        f"{module.at(node)}: {module.home} may not import {imported}"
        for module, node, imported in every_import()
        if module.home in MAY_IMPORT and home_of(imported) not in ("", module.home, *MAY_IMPORT[module.home])
    ]
    assert wrong == []


def test_the_table_has_no_circles() -> None:
    for name in MAY_IMPORT:
        assert name not in reachable(MAY_IMPORT, MAY_IMPORT[name]), f"{name} may import itself by a detour"


def test_modules_do_not_import_each_other_in_circles() -> None:
    graph = {name: tuple(target for _, target in imports_of(modules()[name])) for name in modules()}
    graph = {
        name: tuple(t for t in targets if t != name) for name, targets in graph.items() if name != "astromesh"
    }
    circular = [name for name, targets in graph.items() if name in reachable(graph, targets)]
    assert circular == []


def reachable(graph: Mapping[str, tuple[str, ...]], starts: tuple[str, ...]) -> set[str]:
    seen: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.get(name, ()))
    return seen


# -- where imports stand -------------------------------------------------------------------------------------


def test_imports_stand_at_the_top() -> None:
    wrong = [
        f"{module.at(node)}: import inside {function.name}"
        for module in modules().values()
        if not imports_when_called(module)
        for function in ast.walk(module.tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert wrong == []


def imports_when_called(module: Module) -> bool:
    lazy, *others = IMPORTS_WHEN_CALLED
    return module.name == lazy or module.name.startswith(tuple(others))


def test_no_circle_is_dodged_by_type_checking() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}"
        for module in modules().values()
        if module.name not in NAMES_WITHOUT_LOADING
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Name) and node.id == "TYPE_CHECKING")
        or (isinstance(node, ast.Attribute) and node.attr == "TYPE_CHECKING")
    ]
    assert wrong == [], "move the type down instead"


def test_nothing_draws_from_the_random_numbers_of_the_whole_process() -> None:
    """Jitter has generators of its own: who embeds the runtime may seed `random` and expect its order."""
    wrong = [
        f"{module.at(node)}: import a class of random, not its functions"
        for module in modules().values()
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Import) and any(alias.name == "random" for alias in node.names))
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "random"
            and {alias.name for alias in node.names} - {"Random", "SystemRandom"}
        )
    ]
    assert wrong == []


#: what makes code of data (reliability.md S5); `quick.py` makes it of field names alone
REVIVES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"})
MAY_COMPILE = frozenset({"astromesh.quick"})


def test_nothing_revives_code_from_data() -> None:
    """No pickle, no eval, no loader of YAML that makes objects, no shell."""
    wrong = [
        f"{name}, line {getattr(node, 'lineno', '?')}: {ast.unparse(node)[:60]}"
        for name, module in modules().items()
        for node in ast.walk(module.tree)
        if _revives(node) and name not in MAY_COMPILE
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    ["import pickle", "from marshal import loads", "eval(x)", "exec(x)", "yaml.load(x, Loader=yaml.Loader)",
     "yaml.unsafe_load(x)", "os.system(x)", "subprocess.run(x, shell=True)"],
)  # fmt: skip
def test_what_revives_code_is_found(line: str) -> None:
    assert any(_revives(node) for node in ast.walk(ast.parse(line)))
    assert not any(
        _revives(node) for node in ast.walk(ast.parse("yaml.load(x, yaml.CSafeLoader); a.exec(x)"))
    )


def _revives(node: ast.AST) -> bool:
    match node:
        case ast.Import(names=names):
            return any(alias.name.partition(".")[0] in REVIVES for alias in names)
        case ast.ImportFrom(module=str(name)):
            return name.partition(".")[0] in REVIVES
        case ast.Call(func=ast.Name(id="eval" | "exec")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="system" | "popen")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="yaml"), attr=loads)):
            return "load" in loads and loads != "safe_load" and "SafeLoader" not in ast.unparse(node)
        case ast.keyword(arg="shell", value=ast.Constant(value=True)):
            return True
    return False


# -- nothing unwired -----------------------------------------------------------------------------------------


def test_every_module_is_reached() -> None:
    """From the command, an entry point, the package's face or the public test doubles, by imports."""
    graph = {name: named_by(module) for name, module in modules().items()}
    reached = with_parents(reachable(graph, tuple(entrances())))
    while more := with_parents(reachable(graph, tuple(reached))) - reached:
        reached |= more
    assert sorted(modules().keys() - reached) == []


def entrances() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["scripts"], *project["entry-points"].values()]
    yield from (target.partition(":")[0] for group in groups for target in group.values())
    yield from ("astromesh", "astromesh.__main__", "astromesh.testing")
    yield from ("astromesh.testing.bot_api", "astromesh.testing.graph_api")  # too heavy for the face


def named_by(module: Module) -> tuple[str, ...]:
    """What a module imports, and what the lazy ones name in strings, e.g. `astromesh.api.app:create`."""
    imported = {name for _, name in imports_of(module)}
    if imports_when_called(module):
        imported |= {
            node.value.partition(":")[0]
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and ours(node.value)
        }
    return tuple(name for name in imported if name in modules())


def with_parents(names: set[str]) -> set[str]:
    """Importing a module imports the packages it is in."""
    parts = [name.split(".") for name in names if name in modules()]
    return {".".join(part[: depth + 1]) for part in parts for depth in range(len(part))}


def test_entry_points_name_what_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    targets = [
        (f"{group}: {name}", target)
        for group, entries in {"scripts": project["scripts"], **project["entry-points"]}.items()
        for name, target in entries.items()
    ]
    wrong = [f"{place} = {target}" for place, target in targets if target.partition(":")[0] not in modules()]
    assert wrong == []


# -- the test can be red -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("home", "imported"),
    [
        ("providers", "memory"),
        ("tools", "runtime"),
        ("core", "api"),
        ("abc", "config"),
        ("runtime", "providers"),
        ("runtime", "testing"),
        ("orchestration", "config"),
    ],
)
def test_the_table_forbids(home: str, imported: str) -> None:
    assert imported not in reachable(MAY_IMPORT, MAY_IMPORT[home]) | set(MAY_IMPORT[home])
