"""Jinja2 templates in a sandbox: what prompts and other texts of the configuration are rendered with.

Templates are the operator's, values are anybody's. Values are never templates. What a template may cost is
bounded all the same: steps of loops and calls, and the length of texts.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import lru_cache
from types import CodeType
from typing import Any, NamedTuple, NoReturn, cast

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from astromesh.config.seams import TemplateFault
from astromesh.core.template_costs import (
    MAX_OUTPUT,
    MAX_RANGE,
    MAX_STEPS,
    RECORDS,
    STEPS,
    as_text,
    bounded,
    counted,
    cut,
    joined,
    one_round,
    paid,
    pay_call,
    too_long,
    written,
)
from astromesh.core.template_filters import (
    ANSWER_TEXTS,
    METHODS,
    bounded_method,
    filters,
    given_to_json,
    may_be_called,
    tests,
)
from astromesh.core.template_undefined import (
    SilentUndefined,
    any_missing,
    call_of_text,
    existing,
    is_method_of_text,
    or_none,
    searched,
    taken_apart,
)
from astromesh.errors import InvalidManifest, TemplateFailed

_NOT_HERE: dict[type[nodes.Node], str] = {
    nodes.Extends: "extends",
    nodes.FromImport: "import",
    nodes.Import: "import",
    nodes.Include: "include",
}

#: filters that are written into every template
_COSTS: dict[str, Any] = {
    "_as_text": as_text,
    "_counted": counted,
    "_cut": cut,
    "_joined": joined,
    "_or_none": or_none,
    "_paid": paid,
    "_round": one_round,
    "_searched": searched,
    "_taken_apart": taken_apart,
    "_tojson": given_to_json,
    "_written": written,
}
#: what can make values that hold one thing many times, whose texts are longer than what they take
_BUILDERS = (nodes.List, nodes.Tuple, nodes.Dict, nodes.Add, nodes.Mul, nodes.Call, nodes.Filter)
_REPEATING = frozenset({"batch", "groupby", "map", "slice", "sum"})

#: half a surrogate pair, which no model can be told
_HALF = re.compile("[\ud800-\udfff]")


class Read(NamedTuple):
    """What the text of a template says.

    Args:
        code: what it was compiled to; None: it has a fault.
        names: those that it uses and does not set itself.
    """

    code: CodeType | None
    fault: TemplateFault = TemplateFault("")
    names: frozenset[str] = frozenset()


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of every template."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, finalize: Callable[..., Any] | None = None) -> None:
        super().__init__(undefined=SilentUndefined, autoescape=False, finalize=finalize)
        self.globals["range"] = _range
        self.globals.pop("lipsum")
        self.filters = {**filters(), **_COSTS}
        self.tests = tests()

    def getattr(self, obj: Any, attribute: str) -> Any:
        # the common cases, made fast: plain fields and keys
        kind = type(obj)
        if kind is dict:
            if attribute not in METHODS[dict]:
                value = obj.get(attribute, missing)
                if value is not missing:
                    return value
        elif kind in RECORDS and attribute[0] != "_":
            value = getattr(obj, attribute, missing)
            return value if value is not missing else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if callable(value) and not may_be_called(obj, attr):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Only what is missing is silent; what is forbidden says so."""
        raise SecurityError(f"{attribute!r} of {type(obj).__name__!r} is not available in templates")

    def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
        """Asked for what stands in a method's place: here for those that make long texts of short ones."""
        return bounded_method(value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            _refuse_repeats(left, right)
        elif operator == "**":
            _refuse_powers(right)
        elif operator == "%":
            _refuse_formatting(left)
        return bounded(context, self.binop_table[operator](left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        pay_call(context, obj)
        if is_method_of_text(obj) and any_missing(args, kwargs):
            return bounded(context, call_of_text(obj, args, kwargs))
        made = bounded(context, super().call(context, obj, *args, **kwargs))
        # `{% call %}` writes what macros answer, which are texts, as it is
        return as_text(context, made) if "caller" in kwargs else made

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Loops count their rounds; what is written, joined, compared and cut is paid for.

        What is not there is in no text, and cuts nothing off.
        """
        template = super()._parse(source, name, filename)
        shown = self._shown(template)
        for loop in [*template.find_all(nodes.For)]:
            loop.iter = _filtered(cast("nodes.Expr", loop.iter), "_counted")
            if loop.recursive:
                loop.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(0), "_round")))
        for output in [*template.find_all(nodes.Output)]:
            output.nodes = [_unless_paid(part, shown) for part in output.nodes]
        for block in [*template.find_all(nodes.FilterBlock)]:
            block.filter = _filtered(block.filter, "_as_text")
        for concat in [*template.find_all(nodes.Concat)]:
            concat.nodes = [_filtered(nodes.List(concat.nodes, lineno=concat.lineno), "_joined")]
        for compared in [*template.find_all(nodes.Compare)]:
            _pay_compared(compared)
        for item in [*template.find_all(nodes.Getitem)]:
            if isinstance(item.arg, nodes.Slice):
                item.node = _filtered(item.node, "_cut")
                _allow_missing(item.arg)
        for assigned in [*template.find_all(nodes.Assign)]:
            _allow_missing_parts(assigned)
        template.set_environment(self)
        return template

    def _shown(self, template: nodes.Template) -> str:
        """The filter of what is written: lighter where nothing is made that is longer than what it takes."""
        if self.finalize or any(map(_may_repeat, template.find_all(_BUILDERS))):
            return "_paid"
        for used in template.find_all(nodes.Filter):
            used.name = "_tojson" if used.name == "tojson" else used.name
        return "_written"

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        """Constants are written as Python shows them, and two of those that are shown are no Python."""
        code = super()._generate(source, name, filename, defer_init)
        return f"{code}\ninf, nan = float('inf'), float('nan')\n"

    def _compile(self, source: str, filename: str) -> CodeType:
        try:
            return super()._compile(source, filename)
        except SyntaxError as error:  # what Jinja does not look for: a keyword twice, loops in loops in loops
            line = _line_of_text(source, error.lineno or 0)
            raise TemplateSyntaxError(error.msg or "it cannot be compiled", line) from error

    def read(self, source: str) -> Read:
        """A template as far as its text tells."""
        try:
            tree = self.parse(source)
            if faults := sorted(self._faults(tree), key=lambda fault: fault.line):
                return Read(None, faults[0]._replace(more=tuple(faults[1:])))
            names = frozenset(meta.find_undeclared_variables(tree)) - self.globals.keys()
            return Read(self.compile(tree), names=names)
        except TemplateSyntaxError as error:
            return Read(None, TemplateFault(error.message or "it cannot be read", error.lineno))
        except RecursionError:
            return Read(None, TemplateFault("it is nested too deeply"))
        except Exception as error:  # noqa: BLE001 (Jinja and Python at constants that are none, e.g. `{[]: 1}`)
            return Read(None, TemplateFault(f"it cannot be compiled: {error}"))

    def _faults(self, tree: nodes.Template) -> Iterator[TemplateFault]:
        for used in tree.find_all((nodes.Filter, nodes.Test)):
            kind, known = ("filter", self.filters) if isinstance(used, nodes.Filter) else ("test", self.tests)
            if used.name not in known:
                near = difflib.get_close_matches(used.name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                yield TemplateFault(f"there is no {kind} {used.name!r}{hint}", used.lineno)
        for kind_of, name in _NOT_HERE.items():
            for node in tree.find_all(kind_of):
                yield TemplateFault(f"{name!r} is not available: a template stands alone", node.lineno)
        for text in tree.find_all((nodes.Const, nodes.TemplateData)):
            value = getattr(text, "value", None) or getattr(text, "data", "")
            if isinstance(value, str) and _HALF.search(value):
                yield TemplateFault("it holds half a character (a surrogate)", text.lineno)


class Compiled:
    """A template that is ready.

    Args:
        source: its text.
        label: what it is called in errors, e.g. `the system prompt of support-agent`.
        strict: names and fields that do not exist fail.

    Raises:
        InvalidManifest: it is no template; `line` is that of the text.
    """

    def __init__(self, source: str, label: str, *, strict: bool = False) -> None:
        sandbox = STRICT if strict else SANDBOX
        read = _read(sandbox, source)
        if read.code is None:
            raise InvalidManifest(f"{label} is no Jinja template: {read.fault.message}", line=read.fault.line)
        self._template = Template.from_code(sandbox, read.code, sandbox.make_globals(None))
        self._label = label
        #: names that it uses and does not set itself
        self.names = read.names

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for these values.

        Raises:
            TemplateFailed: an expression fails on these values, or a bound is passed.
        """
        try:
            return self._render({**values, STEPS: [MAX_STEPS]})
        except Exception as error:  # expressions raise anything on values that they were not written for
            line = self._line_of(error)
            where = f" in line {line}" if line else ""
            raise TemplateFailed(f"{self._label} failed{where}: {type(error).__name__}: {error}") from error

    def _render(self, values: dict[str, Any]) -> str:
        parts: list[str] = []
        left = MAX_OUTPUT
        template = self._template
        for part in template.root_render_func(template.new_context(values)):
            parts.append(part)
            left -= len(part)
            if left < 0:
                too_long()
        return "".join(parts)

    def _line_of(self, error: BaseException) -> int:
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__jinja_template__") is not None:
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line


def check_template(source: str) -> TemplateFault | None:
    """What is wrong with a template, or None."""
    read = _read(SANDBOX, source)
    return read.fault if read.code is None else None


@lru_cache(maxsize=1024)
def _read(sandbox: Sandbox, source: str) -> Read:
    """Texts are checked with the configuration and compiled where they are used: read once for both."""
    return sandbox.read(source)


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _allow_missing_parts(assigned: nodes.Assign) -> None:
    if isinstance(assigned.target, nodes.Tuple):
        value = cast("nodes.Expr", assigned.node)
        names: list[nodes.Expr] = [nodes.Const(_names(assigned.target))]
        assigned.node = nodes.Filter(value, "_taken_apart", names, [], None, None, lineno=value.lineno)


def _names(target: nodes.Tuple) -> tuple[Any, ...]:
    return tuple(_names(item) if isinstance(item, nodes.Tuple) else "" for item in target.items)


def _unless_paid(node: nodes.Expr, name: str) -> nodes.Expr:
    if isinstance(node, nodes.Const | nodes.TemplateData):
        return node
    return node if isinstance(node, nodes.Filter) and node.name in ANSWER_TEXTS else _filtered(node, name)


def _pay_compared(compared: nodes.Compare) -> None:
    compared.expr = _unless_paid(compared.expr, "_paid")
    for operand in compared.ops:
        operand.expr = _unless_paid(operand.expr, "_paid")
        if operand.op in ("in", "notin") and not isinstance(compared.expr, nodes.Const):
            operand.expr = _filtered(operand.expr, "_searched")


def _allow_missing(cut: nodes.Slice) -> None:
    for name in cut.fields:
        bound = getattr(cut, name)
        if bound is not None and not isinstance(bound, nodes.Const):
            setattr(cut, name, _filtered(bound, "_or_none"))


def _may_repeat(node: nodes.Node) -> bool:
    """Whether more than what the rendering was given, which is as long as it is, can become of this."""
    if isinstance(node, nodes.Call):
        return isinstance(node.node, nodes.Name) and node.node.name != "range"
    if isinstance(node, nodes.Filter):
        return node.name in _REPEATING
    if isinstance(node, nodes.Add):  # with a number it is no list
        return not any(
            isinstance(side, nodes.Const) and type(side.value) is int for side in (node.left, node.right)
        )
    return getattr(node, "ctx", "load") == "load"


def _refuse_formatting(left: Any) -> None:
    if isinstance(left, str | bytes):
        raise SecurityError("formatting by %; use ~ to join texts")


def _refuse_powers(right: Any) -> None:
    if isinstance(right, int | float) and abs(right) > 64:
        raise SecurityError("a power of more than 64")


def _refuse_repeats(left: Any, right: Any) -> None:
    for sized, times in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(sized, Sized) and len(sized) * times > MAX_OUTPUT:
            too_long()


def _line_of_text(code: str, line: int) -> int:
    """The line of a template that this line of what it became stands for."""
    lines = re.search(r"^debug_info = '(.*)'$", code, re.MULTILINE)
    pairs = [pair.split("=") for pair in lines[1].split("&")] if lines and lines[1] else []
    return max((int(text) for text, made in pairs if int(made) <= line), default=1)


def _range(*bounds: Any) -> range:
    numbers = range(*(existing(bounds) or (0,)))
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"a range of more than {MAX_RANGE} numbers")
    return numbers


SANDBOX = Sandbox()
#: where what does not exist is a failure: conditions must not hold, or not hold, by a name that is misspelt
STRICT = Sandbox()
STRICT.undefined = StrictUndefined
