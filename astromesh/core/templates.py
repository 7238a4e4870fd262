"""Jinja2 templates in a sandbox: prompts and other texts of the configuration.

Templates come from the operator, values from any caller. Values are never templates. `template_limits` limits
the cost of a rendering.

Missing values render as nothing, and so do expressions over them (document 001, step 5). A missing argument
counts as an omitted one, wherever the argument is optional.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pprint import pprint
from types import BuiltinMethodType, CodeType, MethodType
from typing import Any, NamedTuple, NoReturn, cast

import orjson
from jinja2 import (
    ChainableUndefined,
    Environment,
    StrictUndefined,
    Template,
    TemplateSyntaxError,
    Undefined,
    meta,
    nodes,
    pass_context,
    pass_environment,
)
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, do_attr, do_replace, ignore_case, make_attrgetter, make_multi_attrgetter
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import _PassArg, missing
from jinja2.visitor import NodeTransformer

from astromesh.config.base import TemplateFault
from astromesh.core.template_limits import (
    CHARS,
    MAX_NUMBER,
    MAX_OUTPUT,
    MAX_STEPS,
    RECORDS,
    STEPS,
    BoundedText,
    bounded,
    check_call,
    check_format,
    check_operands,
    check_size,
    counted,
    length_of,
    step,
    written,
)
from astromesh.errors import InvalidManifest, TemplateFailed
from astromesh.text import did_you_mean


class SilentUndefined(ChainableUndefined):
    """Renders as nothing, is false and empty, and stays missing in every expression."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The empty text, as written in lists and mappings."""
        return "''"

    def __format__(self, _: str) -> str:
        return ""

    def _itself(self, *_: Any, **__: Any) -> Any:
        return self

    def _other(self, other: Any) -> Any:
        return other

    def _no(self, *_: Any) -> Any:
        return False

    def _zero(self, *_: Any) -> Any:
        return 0

    def _zero_float(self) -> Any:
        return 0.0

    __add__ = __radd__ = _other
    __call__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _itself
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _itself
    __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = _itself
    __lt__ = __le__ = __gt__ = __ge__ = _no
    __int__ = _zero
    __float__ = _zero_float
    __round__ = __abs__ = _zero


class _SearchedText(str):
    """A text in which no missing value is found."""

    __slots__ = ()

    def __contains__(self, sought: object) -> bool:
        return not is_missing(sought) and super().__contains__(sought)  # type: ignore[operator]


def is_missing(value: object) -> bool:
    """Whether a value is missing; never true where a missing value is an error (`StrictUndefined`)."""
    return type(value) is SilentUndefined


def any_missing(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether an argument of a call is missing."""
    return SilentUndefined in map(type, args) or SilentUndefined in map(type, named.values())


def searchable(value: Any) -> Any:
    """The right side of `in`."""
    return _SearchedText(value) if isinstance(value, str) else value


def found_in(value: Any, place: Any) -> bool:
    """The test `in`."""
    return value in searchable(place)


def unpacked(value: Any, names: tuple[Any, ...]) -> Any:
    """The value of several names: if it is missing, each of them is.

    Args:
        names: holds a tuple for each nested group of names.
    """
    if not is_missing(value):
        return value
    return tuple(unpacked(value, name) if isinstance(name, tuple) else value for name in names)


# -- arguments ---------------------------------------------------------------------------------------------

#: results of methods of texts whose first argument is missing
_RESULTS: Mapping[str, Callable[[str], Any]] = {
    "count": lambda _: 0,
    "endswith": lambda _: False,
    "find": lambda _: -1,
    "join": lambda _: "",
    "partition": lambda text: (text, "", ""),
    "removeprefix": lambda text: text,
    "removesuffix": lambda text: text,
    "replace": lambda text: text,
    "rfind": lambda _: -1,
    "rpartition": lambda text: ("", "", text),
    "startswith": lambda _: False,
}


def call_of_text(method: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """The result of a text's method with a missing argument."""
    result = _RESULTS.get(method.__name__)
    if result is not None and args and is_missing(args[0]):
        return result(method.__self__)
    if method.__name__ == "join" and args:
        args = (["" if is_missing(item) else item for item in args[0]],)
    if method.__name__ == "replace" and len(args) > 1 and is_missing(args[1]):
        args = (args[0], "", *args[2:])
    args, named = drop_missing(args, named, ())
    return method(*(None if is_missing(value) else value for value in args), **named)


def required_arguments(filter_function: Callable[..., Any]) -> Sequence[str] | None:
    """The required arguments of a filter beside its value; None where no argument is optional."""
    parameters = list(inspect.signature(filter_function).parameters.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters) or all(p.default is p.empty for p in parameters):
        return None
    if parameters[0].name in ("context", "env", "environment", "eval_ctx"):
        del parameters[0]
    return [p.name for p in parameters[1:] if p.default is p.empty]


def drop_missing(
    args: Sequence[Any], named: Mapping[str, Any], required: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments without the missing ones that are optional."""
    end = len(args)
    while end > len(required) and is_missing(args[end - 1]):
        end -= 1
    present = {name: value for name, value in named.items() if name in required or not is_missing(value)}
    return tuple(args[:end]), present


# -- filters -----------------------------------------------------------------------------------------------


@pass_context
def _attr(context: Context, obj: Any, name: Any) -> Any:
    return name if is_missing(name) else do_attr(context.environment, obj, name)


@pass_context
def _replace(context: Context, s: Any, old: Any, new: Any, count: int | None = None) -> Any:
    return s if is_missing(old) else do_replace(context.eval_ctx, s, old, new, count)


@pass_context
def _slice(context: Context, value: Any, slices: Any, fill_with: Any = None) -> Any:
    return FILTERS["slice"](context.eval_ctx, value, 1 if is_missing(slices) else slices, fill_with)


@pass_environment
def _sort(
    environment: Environment,
    value: Any,
    reverse: bool = False,
    case_sensitive: bool = False,
    attribute: Any = None,
) -> list[Any]:
    """A missing value is less than all others."""
    keys = make_multi_attrgetter(environment, attribute, None if case_sensitive else ignore_case)
    return sorted(value, key=lambda item: [(not is_missing(key), key) for key in keys(item)], reverse=reverse)


@pass_environment
def _groupby(
    environment: Environment, value: Any, attribute: Any, default: Any = None, case_sensitive: bool = False
) -> Any:
    """Items without the attribute are the first group: the filter keeps the order of what `_sort` returns."""
    ordered = _sort(environment, value, False, case_sensitive, attribute)
    return FILTERS["groupby"](environment, ordered, attribute, default, case_sensitive)


#: filters that must know of missing values
MISSING_FILTERS: dict[str, Callable[..., Any]] = {
    "attr": _attr,
    "groupby": _groupby,
    "replace": _replace,
    "slice": _slice,
    "sort": _sort,
}


_UNAVAILABLE: dict[type[nodes.Node], str] = {
    nodes.Extends: "extends",
    nodes.FromImport: "import",
    nodes.Import: "import",
    nodes.Include: "include",
}
#: values whose methods may make a long text
_TEXTS = (str, bytes, int, float)
#: their methods that make bytes, or long texts of a table
_REFUSED_METHODS = frozenset({"encode", "from_bytes", "fromhex", "maketrans", "to_bytes", "translate"})
#: arguments that Jinja adds to calls in loops and blocks
_SCOPES = ("_loop_vars", "_block_vars")
#: methods of a mapping, which take precedence over its keys
_DICT_METHODS = frozenset({"copy", "get", "items", "keys", "values"})
#: half of a surrogate pair, which no model accepts
_SURROGATE = re.compile("[\ud800-\udfff]")


class TemplateAnalysis(NamedTuple):
    """The result of reading the text of a template.

    Args:
        code: the compiled template; None: it has a fault.
        names: the variables that it uses and does not set itself.
    """

    code: CodeType | None
    fault: TemplateFault = TemplateFault("")
    names: frozenset[str] = frozenset()


class _Limits(NodeTransformer):
    """Inserts the filters for limits and missing values into the syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_counted")
        return node

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.FilterBlock:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "_as_text")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(part, "_written") for part in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        constant = isinstance(node.expr, nodes.Const)
        node.expr = node.expr if constant else _filtered(node.expr, "_written")
        for operand in node.ops:
            if not isinstance(operand.expr, nodes.Const):
                operand.expr = _filtered(operand.expr, "_written")
            if operand.op in ("in", "notin") and not constant:
                operand.expr = _filtered(operand.expr, "_searchable")
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        return _filtered(node.node, "_sliced", *(bound or nodes.Const(None) for bound in bounds))

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:  # noqa: N802
        self.generic_visit(node)
        if isinstance(node.target, nodes.Tuple):
            node.node = _filtered(node.node, "_unpacked", nodes.Const(_names(node.target)))
        return node


def _filtered(node: nodes.Node, name: str, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, list(args), [], None, None, lineno=node.lineno)


def _names(target: nodes.Tuple) -> tuple[Any, ...]:
    return tuple(_names(item) if isinstance(item, nodes.Tuple) else "" for item in target.items)


# -- filters and tests -------------------------------------------------------------------------------------

#: tests that compare values or read their text
_COMPARISONS = "!= < <= == > >= eq equalto ge greaterthan gt in le lessthan lower lt ne upper"
_PASSED: dict[_PassArg | None, Callable[[Context], tuple[Any, ...]]] = {
    None: lambda _: (),
    _PassArg.context: lambda context: (context,),
    _PassArg.eval_context: lambda context: (context.eval_ctx,),
    _PassArg.environment: lambda context: (context.environment,),
}


def _filters() -> dict[str, Any]:
    """The standard filters under limits."""
    own = {**MISSING_FILTERS, "pprint": _pprint, "sum": _sum, "tojson": _to_json}
    return {name: _limited(name, function) for name, function in {**FILTERS, **own}.items()}


def _tests() -> dict[str, Any]:
    """The standard tests, of which those that compare take steps."""
    standard: dict[str, Any] = {**TESTS, "in": found_in}
    return standard | {name: _comparison(standard[name]) for name in _COMPARISONS.split()}


def _limited(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter under limits.

    A missing argument counts as an omitted one if the filter has a default for it.
    """
    passed, required = _PASSED[_PassArg.from_obj(function)], required_arguments(function)

    @pass_context
    def limited(context: Context, *values: Any, **named: Any) -> Any:
        if required is not None and any_missing(values, named):
            args, named = drop_missing(values[1:], named, required)
            values = (values[0], *args)
        arguments = check_call(context, name, values, named)
        return bounded(context, function(*passed(context), *arguments, **named))

    return limited


def _comparison(test: Callable[..., Any]) -> Callable[..., Any]:
    @pass_context
    def compare(context: Context, *values: Any) -> Any:
        for value in values:
            written(context, value)
        return test(*values)

    return compare


def _pprint(value: Any) -> str:
    """Indents by the length of keys, so that a short value may have a long text."""
    text = BoundedText()
    if not is_missing(value):
        pprint(value, text)  # noqa: T203 (into the text)
    return text.getvalue().removesuffix("\n")


@pass_context
def _sum(context: Context, iterable: Any, attribute: str | int | None = None, start: Any = 0) -> Any:
    """Bounds each sum: the sum of lists copies the one before."""
    if attribute is not None:
        iterable = map(make_attrgetter(context.environment, attribute), iterable)
    for item in iterable:
        start = bounded(context, start + item)
    return start


@pass_context
def _sliced(context: Context, value: Any, *bounds: Any) -> Any:
    """A slice of a value; a missing bound counts as an omitted one."""
    step(context, length_of(value) // CHARS)
    return value[slice(*(None if is_missing(bound) else bound for bound in bounds))]


@pass_context
def _as_text(context: Context, value: Any) -> str:
    """The result of a block, which Jinja takes for a text."""
    return value if isinstance(value, str) else str(written(context, value))


def _to_json(value: Any, indent: int | None = None) -> str:
    """JSON as a model reads it; the standard filter escapes for HTML."""
    if isinstance(value, Undefined):
        return "null"
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return orjson.dumps(value, default=str, option=option).decode()


# -- the environment ---------------------------------------------------------------------------------------


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment of every template."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, finalize: Callable[..., Any] = written) -> None:
        super().__init__(undefined=SilentUndefined, autoescape=False, finalize=finalize)
        self.globals["range"] = _range
        self.globals.pop("lipsum")
        self.filters = {
            **_filters(),
            "_as_text": _as_text,
            "_counted": counted,
            "_searchable": searchable,
            "_sliced": _sliced,
            "_unpacked": unpacked,
            "_written": written,
        }
        self.tests = _tests()

    def getattr(self, obj: Any, attribute: str) -> Any:
        # a fast path for plain fields and keys
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_METHODS:
                value = obj.get(attribute, missing)
                if value is not missing:
                    return value
        elif kind in RECORDS and attribute[0] != "_":
            value = getattr(obj, attribute, missing)
            return value if value is not missing else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        refused = attr in _REFUSED_METHODS and isinstance(obj, _TEXTS)
        return not refused and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Raises for forbidden attributes; only missing ones are silent."""
        raise SecurityError(f"{attribute!r} of {type(obj).__name__!r} is not available in templates")

    def wrap_str_format(self, value: Any) -> Callable[..., Any] | None:
        formatted = super().wrap_str_format(value)
        if formatted is None:
            return None

        def capped(*args: Any, **named: Any) -> Any:
            check_format(value.__self__, [*args, *named.values()])
            return formatted(*args, **named)

        return capped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        check_operands(operator, left, right)
        return bounded(context, self.binop_table[operator](left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = obj.__self__ if isinstance(obj, BuiltinMethodType | MethodType) else None
        if isinstance(owner, _TEXTS):
            named = {name: value for name, value in kwargs.items() if name not in _SCOPES}
            _, *arguments = check_call(context, obj.__name__, (owner, *args), named)
            return bounded(context, call_of_text(obj, arguments, named))
        step(context, 1 + length_of(owner) // CHARS)
        if isinstance(obj, LoopContext):
            args = (counted(context, args[0]), *args[1:])
        made = bounded(context, super().call(context, obj, *args, **kwargs))
        # `{% call %}` writes the results of macros, which are texts, unchanged
        return _as_text(context, made) if "caller" in kwargs else made

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Limits().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        """Defines `inf` and `nan`: Jinja writes constants as `repr` does, and these two are no literals."""
        code = super()._generate(source, name, filename, defer_init)
        return f"{code}\ninf, nan = float('inf'), float('nan')\n"

    def _compile(self, source: str, filename: str) -> CodeType:
        try:
            return super()._compile(source, filename)
        except SyntaxError as error:  # e.g. repeated keywords, too many nested loops
            line = _line_of_text(source, error.lineno or 0)
            raise TemplateSyntaxError(error.msg or "it cannot be compiled", line) from error

    def analyze(self, source: str) -> TemplateAnalysis:
        """Compiles a template, or finds its faults."""
        try:
            tree = self.parse(source)
            if faults := sorted(self._faults(tree), key=lambda fault: fault.line):
                return TemplateAnalysis(None, faults[0]._replace(more=tuple(faults[1:])))
            for mapping in tree.find_all(nodes.Dict):
                with suppress(nodes.Impossible):
                    mapping.as_const()  # raises where Python would, such as at `{[]: 1}`
            names = frozenset(meta.find_undeclared_variables(tree)) - self.globals.keys()
            return TemplateAnalysis(self.compile(tree), names=names)
        except TemplateSyntaxError as error:
            return TemplateAnalysis(None, TemplateFault(error.message or "it cannot be parsed", error.lineno))
        except RecursionError:
            return TemplateAnalysis(None, TemplateFault("it is nested too deeply"))
        except Exception as error:  # noqa: BLE001 (Jinja and Python at constants that are none, e.g. `{[]: 1}`)
            return TemplateAnalysis(None, TemplateFault(f"it cannot be compiled: {error}"))

    def _faults(self, tree: nodes.Template) -> Iterator[TemplateFault]:
        for used in tree.find_all((nodes.Filter, nodes.Test)):
            kind, known = ("filter", self.filters) if isinstance(used, nodes.Filter) else ("test", self.tests)
            if used.name not in known:
                hint = did_you_mean(used.name, (name for name in known if name[0] != "_"))
                message = f"unknown {kind} `{used.name}`"
                yield TemplateFault(f"{message}. {hint}" if hint else message, used.lineno)
        for kind_of, name in _UNAVAILABLE.items():
            for node in tree.find_all(kind_of):
                yield TemplateFault(f"`{name}` is not available in templates", node.lineno)
        for text in tree.find_all((nodes.Const, nodes.TemplateData)):
            value = getattr(text, "value", None) or getattr(text, "data", "")
            if isinstance(value, str) and _SURROGATE.search(value):
                yield TemplateFault("it contains half a surrogate pair", text.lineno)


def _range(*bounds: Any) -> range:
    numbers = range(*([bound for bound in bounds if not is_missing(bound)] or (0,)))
    if len(numbers) > MAX_NUMBER:
        raise SecurityError(f"a range of more than {MAX_NUMBER} numbers")
    return numbers


SANDBOX = Sandbox()
#: missing values are errors: a misspelled name must not decide a condition
STRICT = Sandbox()
STRICT.undefined = StrictUndefined


#: filters and tests of values that may be missing
_DEFAULTS, _DEFINED = ("default", "d"), ("defined", "undefined")


def _names_in(node: nodes.Node) -> Iterator[nodes.Name]:
    if isinstance(node, nodes.Name):
        yield node
    yield from node.find_all(nodes.Name)


class CompiledTemplate:
    """A compiled template.

    Args:
        source: its text.
        label: its name in errors, e.g. `the system prompt of support-agent`.
        sandbox: its environment; in `STRICT`, missing names and fields are errors.

    Raises:
        InvalidManifest: the text is not a template; `line` is the line of the fault.
    """

    def __init__(self, source: str, label: str, sandbox: Sandbox = SANDBOX) -> None:
        read = _analyze(sandbox, source)
        if read.code is None:
            raise InvalidManifest(
                f"{label} is not a Jinja template: {read.fault.message}", line=read.fault.line
            )
        self._template = Template.from_code(sandbox, read.code, sandbox.make_globals(None))
        self._label, self._source = label, source
        #: variables that it uses and does not set itself
        self.names = read.names

    def unconditional_names(self) -> dict[str, int]:
        """The variables without those that the template tests or gives a default, and their first lines."""
        tree = SANDBOX.parse(self._source)
        tested: list[nodes.Node] = [used.test for used in tree.find_all(nodes.If)]
        tested += [used.test for used in tree.find_all(nodes.CondExpr)]
        tested += [used for used in tree.find_all(nodes.Filter) if used.name in _DEFAULTS]
        tested += [used for used in tree.find_all(nodes.Test) if used.name in _DEFINED]
        optional = {name.name for test in tested for name in _names_in(test)}
        lines: dict[str, int] = {}
        for name in tree.find_all(nodes.Name):
            if name.name in self.names - optional:
                lines.setdefault(name.name, name.lineno)
        return lines

    def render(self, values: Mapping[str, Any]) -> str:
        """The text for these values.

        Raises:
            TemplateFailed: an expression fails on these values, or a limit is exceeded.
        """
        try:
            return self._render({**values, STEPS: [MAX_STEPS]})
        except Exception as error:  # expressions may raise anything
            line = self._line_of(error)
            where = f" in line {line}" if line else ""
            raise TemplateFailed(f"{self._label} failed{where}: {type(error).__name__}: {error}") from error

    def _render(self, values: dict[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        template = self._template
        for part in template.root_render_func(template.new_context(values)):
            parts.append(part)
            size += len(part)
            if size > MAX_OUTPUT:
                check_size(size)
        return "".join(parts)

    def _line_of(self, error: BaseException) -> int:
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_globals.get("__jinja_template__") is not None:
                line = self._template.get_corresponding_lineno(trace.tb_lineno)
            trace = trace.tb_next
        return line


def check_template(source: str) -> TemplateFault | None:
    """The first fault of a template, or None."""
    read = _analyze(SANDBOX, source)
    return read.fault if read.code is None else None


@lru_cache(maxsize=1024)
def _analyze(sandbox: Sandbox, source: str) -> TemplateAnalysis:
    """Cached, because the configuration checks a template before the runtime compiles it."""
    return sandbox.analyze(source)


def _line_of_text(code: str, line: int) -> int:
    """The line of a template for a line of its compiled code."""
    lines = re.search(r"^debug_info = '(.*)'$", code, re.MULTILINE)
    pairs = [pair.split("=") for pair in lines[1].split("&")] if lines and lines[1] else []
    return max((int(text) for text, made in pairs if int(made) <= line), default=1)
