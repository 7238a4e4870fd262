"""Lists every message that a user can read: `python scripts/messages.py [--kind KIND] [PATH ...]`.

A line of the list has file, line, kind and text. The script reads syntax trees and never imports the code.
Kinds:

    error       texts of exceptions that the code raises or makes
    log         names of log events
    output      what commands print
    help        help texts of commands, descriptions of routes, and of fields in JSON Schemas and OpenAPI
    text        other string literals that read like a sentence, e.g. problem details and templates of errors

Without a path the list covers the whole package. A message appears once; values in it stand as `{name}`.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
KINDS = ("error", "log", "output", "help", "text")

LOG_METHODS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOG_OBJECTS = frozenset({"log", "_log", "logger", "_logger"})
OUTPUT_CALLS = frozenset({"print", "echo", "secho", "note", "write", "print_table"})
ROUTED = frozenset({"command", "callback", "get", "post", "put", "delete", "patch", "websocket"})
HELP_ARGUMENTS = frozenset({"help", "description", "summary", "metavar", "short_help", "epilog"})
EXCEPTION = re.compile(r"(?:Error|Exception|Unavailable|Rejected|Exit|Gone|Refused|Failed|Blocked|NotFound)$")
SENTENCE = re.compile(r"[A-Za-z`'{][^\n]* [^\n]* \S+", re.DOTALL)


class Message(NamedTuple):
    """A message and its place."""

    path: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        text = " ".join(self.text.split())
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.kind}: {text}"


class Collector(ast.NodeVisitor):
    """Collects the messages of one module."""

    def __init__(self, path: Path, exceptions: frozenset[str]) -> None:
        self.messages: list[Message] = []
        self._path = path
        self._exceptions = exceptions
        self._seen: set[int] = set()

    def visit_Module(self, node: ast.Module) -> None:
        self._visit_body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        if node.exc is not None:
            self._add(node.exc, "error")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = name_of(node.func)
        if is_log_call(node.func):
            self._add_all(node.args[:1], "log")
        elif name in OUTPUT_CALLS:
            self._add_all(node.args, "output")
        elif name in self._exceptions or EXCEPTION.search(name):
            self._add_all([*node.args, *(keyword.value for keyword in node.keywords)], "error")
        for keyword in node.keywords:
            if keyword.arg in HELP_ARGUMENTS:
                self._add(keyword.value, "help")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and SENTENCE.search(node.value):
            self._add(node, "text")

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if SENTENCE.search(text_of(node)):
            self._add(node, "text")

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visits a function; the docstring of a command or a route is a text for users."""
        calls = [found for found in node.decorator_list if isinstance(found, ast.Call)]
        if ast.get_docstring(node) is not None and any(name_of(call.func) in ROUTED for call in calls):
            self._add(node.body[0], "help")
        self._visit_body(node)

    def _visit_body(self, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visits a definition without its docstring."""
        if ast.get_docstring(node, clean=False) is not None:
            self._seen.add(id(node.body[0].value))  # type: ignore[attr-defined]
        self.generic_visit(node)

    def _add_all(self, nodes: Iterable[ast.AST], kind: str) -> None:
        for node in nodes:
            self._add(node, kind)

    def _add(self, node: ast.AST, kind: str) -> None:
        """Adds the strings of an expression that are not listed yet."""
        for found in strings(node):
            if id(found) in self._seen:
                continue
            self._seen.update(id(part) for part in ast.walk(found))
            text = text_of(found)
            if text.strip() and (kind == "log" or " " in text.strip()):
                self.messages.append(Message(self._path, found.lineno, kind, text))


def strings(node: ast.AST) -> Iterator[ast.Constant | ast.JoinedStr]:
    """Returns the outermost string expressions below a node."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from strings(child)


def text_of(node: ast.Constant | ast.JoinedStr) -> str:
    """Returns the text of a string; an expression in it stands as `{expression}`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    return "".join(
        f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else text_of(part)
        for part in node.values
        if isinstance(part, ast.FormattedValue | ast.Constant)
    )


def name_of(node: ast.expr) -> str:
    """Returns the last name of `name` or `object.name`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def is_log_call(function: ast.expr) -> bool:
    """Whether an expression is a method of a logger, e.g. `log.warning`."""
    return (
        isinstance(function, ast.Attribute)
        and function.attr in LOG_METHODS
        and name_of(function.value) in LOG_OBJECTS
    )


def exception_names() -> frozenset[str]:
    """Returns the names of the exceptions in `astromesh.errors`."""
    tree = ast.parse((ROOT / "astromesh" / "errors.py").read_text("utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.ClassDef))


def messages(paths: Iterable[Path]) -> Iterator[Message]:
    """Returns the messages of files and folders, by file and line."""
    exceptions = exception_names()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            collector = Collector(file.resolve(), exceptions)
            collector.visit(ast.parse(file.read_text("utf-8"), str(file)))
            yield from sorted(collector.messages, key=lambda message: message.line)


def main() -> None:
    parser = argparse.ArgumentParser(description="List every message that a user can read.")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "astromesh"], metavar="PATH")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; repeatable")
    arguments = parser.parse_args()
    for message in messages(arguments.paths):
        if arguments.kind is None or message.kind in arguments.kind:
            print(message)


if __name__ == "__main__":
    main()
