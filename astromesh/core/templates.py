"""Jinja2 templates in a sandbox: what prompts and other texts of the configuration are rendered with.

Templates are the operator's, values are anybody's. Values are never templates. What a template may cost is
bounded all the same: steps of loops and calls, and the length of texts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import lru_cache, wraps
from types import CodeType
from typing import Any, NamedTuple, NoReturn, cast

import orjson
from jinja2 import (
    ChainableUndefined,
    StrictUndefined,
    Template,
    TemplateSyntaxError,
    Undefined,
    meta,
    nodes,
    pass_context,
)
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import missing

from astromesh.config.seams import TemplateFault
from astromesh.errors import InvalidManifest, TemplateFailed
from astromesh.types import Message, SemanticResult

#: characters of a rendered text, and of any text on the way to it
MAX_OUTPUT = 1_000_000
#: steps of loops, and calls, in one rendering
MAX_STEPS = 100_000
MAX_RANGE = 10_000
MAX_BITS = 4_096
#: of `center`, `indent` and `wordwrap`
MAX_WIDTH = 1_000

#: names in templates that nobody else may use
_STEPS = "_steps"
#: what templates read fields of
_RECORDS = frozenset({Message, SemanticResult})
#: methods of strings that make long texts of short ones
_INFLATING = frozenset({"center", "expandtabs", "format", "format_map", "ljust", "rjust", "zfill"})
_NOT_HERE: dict[type[nodes.Node], str] = {
    nodes.Extends: "extends",
    nodes.FromImport: "import",
    nodes.Import: "import",
    nodes.Include: "include",
}

#: what expressions raise on values that they were not written for
_FAILURES = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class SilentUndefined(ChainableUndefined):
    """What does not exist renders as nothing, and so does what is made of it (document 001, step 5)."""

    __slots__ = ()

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

    def __init__(self) -> None:
        super().__init__(undefined=SilentUndefined, autoescape=False)
        self.globals["range"] = _range
        self.globals.pop("lipsum")
        self.filters.update(tojson=_to_json, _bounded=_bounded, _steps=_counted)
        for name in ("center", "indent", "wordwrap"):
            self.filters[name] = _narrow(self.filters[name])
        self.filters.pop("format")

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) in _RECORDS and attribute[0] != "_":  # the common case, made fast: plain fields
            value = getattr(obj, attribute, missing)
            return value if value is not missing else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in _INFLATING:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Only what is missing is silent; what is forbidden says so."""
        raise SecurityError(f"{attribute!r} of {type(obj).__name__!r} is not available in templates")

    def wrap_str_format(self, value: Any) -> None:
        """No `str.format`: a width in it makes a text of any length."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise SecurityError("a power of more than 64")
        if operator == "%" and isinstance(left, str):
            raise SecurityError("formatting by %; use ~ to join texts")
        if operator == "*" and isinstance(left, Sized) | isinstance(right, Sized):
            sized, times = (left, right) if isinstance(left, Sized) else (right, left)
            if isinstance(times, int) and len(sized) * times > MAX_OUTPUT:
                _too_long()
        return _bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        _step(context, 1)
        return super().call(context, obj, *args, **kwargs)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop counts its steps, and joined texts are measured."""
        template = super()._parse(source, name, filename)
        for loop in template.find_all(nodes.For):
            loop.iter = _filtered(cast("nodes.Expr", loop.iter), "_steps")
        for concat in template.find_all(nodes.Concat):
            concat.nodes = [_filtered(part, "_bounded") for part in concat.nodes]
        template.set_environment(self)
        return template

    def read(self, source: str) -> Read:
        """A template as far as its text tells."""
        try:
            tree = self.parse(source)
        except TemplateSyntaxError as error:
            return Read(None, TemplateFault(error.message or "it cannot be read", error.lineno))
        fault = next(self._faults(tree), None)
        if fault is not None:
            return Read(None, fault)
        try:
            names = frozenset(meta.find_undeclared_variables(tree)) - self.globals.keys()
            return Read(self.compile(tree), names=names)
        except TemplateSyntaxError as error:
            return Read(None, TemplateFault(error.message or "it cannot be compiled", error.lineno))

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
            return self._render({**values, _STEPS: [MAX_STEPS]})
        except _FAILURES as error:
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
                _too_long()
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


# -- what bounds it ----------------------------------------------------------------------------------------


def _filtered(node: nodes.Expr, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _counted(context: Context, values: Any) -> Any:
    """What a loop goes over, paid for in steps."""
    if isinstance(values, Undefined):
        return values
    if isinstance(values, Sized):
        _step(context, len(values))
        return values
    return _one_by_one(context, values)


def _one_by_one(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _step(context, 1)
        yield value


def _step(context: Context, steps: int) -> None:
    left = context.parent[_STEPS]
    left[0] -= steps
    if left[0] < 0:
        raise SecurityError(f"more than {MAX_STEPS} steps of loops and calls")


def _bounded(value: Any) -> Any:
    if isinstance(value, Sized):
        if len(value) > MAX_OUTPUT:
            _too_long()
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise SecurityError(f"a number of more than {MAX_BITS} bits")
    return value


def _too_long() -> NoReturn:
    raise SecurityError(f"more than {MAX_OUTPUT} characters")


def _range(*bounds: int) -> range:
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE:
        raise SecurityError(f"a range of more than {MAX_RANGE} numbers")
    return numbers


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of the standard ones whose numbers stay small."""

    @wraps(function)
    def narrowed(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(number, int) and number > MAX_WIDTH for number in (*args, *kwargs.values())):
            raise SecurityError(f"a width of more than {MAX_WIDTH}")
        return function(*args, **kwargs)

    return narrowed


def _to_json(value: Any, indent: int | None = None) -> str:
    """JSON as a model reads it; the standard filter escapes for HTML."""
    if isinstance(value, Undefined):
        return "null"
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if indent else 0)
    return orjson.dumps(value, default=str, option=option).decode()


SANDBOX = Sandbox()
#: where what does not exist is a failure: conditions must not hold, or not hold, by a name that is misspelt
STRICT = Sandbox()
STRICT.undefined = StrictUndefined
