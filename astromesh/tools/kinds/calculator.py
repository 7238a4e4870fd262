"""Arithmetic without `eval`: a parser with limits on length, depth and size of numbers.

sum     = product (("+" | "-") product)*
product = power (("*" | "/" | "//" | "%") power)*
power   = ("+" | "-") power | atom (("**" | "^") power)?
atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping

from astromesh.errors import InvalidToolCall

MAX_LENGTH, MAX_DEPTH, MAX_BITS, MAX_DIGITS = 1000, 50, 4096, 300
Number = int | float

_TOKEN = re.compile(
    r"\s*(?:([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))"
)
_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}


def _round(value: Number, digits: Number = 0) -> Number:
    """Rounds with a limit on the digits, since `round` has none."""
    if abs(digits) > MAX_DIGITS:
        raise InvalidToolCall(f"round takes at most {MAX_DIGITS} digits.")
    return round(value, int(digits)) if digits else round(value)


_FUNCTIONS: Mapping[str, Callable[..., Number]] = {
    "abs": abs, "round": _round, "min": min, "max": max, "sqrt": math.sqrt, "floor": math.floor,
    "ceil": math.ceil, "log": math.log, "log10": math.log10, "log2": math.log2, "exp": math.exp,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos,
    "atan": math.atan, "atan2": math.atan2, "hypot": math.hypot, "degrees": math.degrees,
    "radians": math.radians, "gcd": math.gcd,
}  # fmt: skip
_SUMS: Mapping[str, Callable[[Number, Number], Number]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Mapping[str, Callable[[Number, Number], Number]] = {
    "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip


def calculate(expression: str) -> Number:
    """Returns the value of an expression.

    Raises:
        InvalidToolCall: it is invalid, too long or too deep, or its value is too large or not a number.
    """
    if len(expression) > MAX_LENGTH:
        raise InvalidToolCall(f"The expression has more than {MAX_LENGTH} characters.")
    try:
        value = _Parser(_tokens(expression)).whole()
        if isinstance(value, complex) or not math.isfinite(value):
            raise InvalidToolCall("The value is not a number.")
    except (ArithmeticError, ValueError, TypeError) as error:
        raise InvalidToolCall(f"This cannot be calculated: {error}.") from error
    return value


def _tokens(expression: str) -> list[str]:
    tokens, at, end = [], 0, len(expression.rstrip())
    while at < end:
        found = _TOKEN.match(expression, at)
        if found is None:
            raise InvalidToolCall(f"Unexpected {expression[at:end].lstrip()[:1]!r} at position {at + 1}.")
        tokens.append(found[0].strip())
        at = found.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens, self._at, self._depth = tokens, 0, 0

    def whole(self) -> Number:
        value = self._sum()
        if self._next():
            raise InvalidToolCall(f"Unexpected {self._next()!r}.")
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise InvalidToolCall(f"{token!r} is missing.")

    def _sum(self) -> Number:
        return self._row(_SUMS, self._product)

    def _product(self) -> Number:
        return self._row(_PRODUCTS, self._power)

    def _row(
        self, operators: Mapping[str, Callable[[Number, Number], Number]], part: Callable[[], Number]
    ) -> Number:
        value = part()
        while (sign := self._next()) in operators:
            self._take()
            value = _check_size(operators[sign](value, part()))
        return value

    def _power(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidToolCall(f"The expression is nested more than {MAX_DEPTH} deep.")
        try:
            if self._next() in _SUMS:
                return -self._power() if self._take() == "-" else self._power()
            base = self._atom()
            if self._next() not in ("**", "^"):
                return base
            self._take()
            return _power(base, self._power())
        finally:
            self._depth -= 1

    def _atom(self) -> Number:
        part = self._take()
        if part == "(":
            value = self._sum()
            self._expect(")")
            return value
        if part[:1].isdigit() or part[:1] == ".":
            return int(part) if part.isdigit() else float(part)
        if part in _CONSTANTS:
            return _CONSTANTS[part]
        if part in _FUNCTIONS:
            return self._call(_FUNCTIONS[part])
        message = f"{part!r} is not a number or function." if part else "The expression is incomplete."
        raise InvalidToolCall(message)

    def _call(self, function: Callable[..., Number]) -> Number:
        self._expect("(")
        arguments = [self._sum()]
        while self._next() == ",":
            self._take()
            arguments.append(self._sum())
        self._expect(")")
        return _check_size(function(*arguments))


def _power(base: Number, exponent: Number) -> Number:
    """Returns a power; checks its size before it is computed."""
    if isinstance(base, int) and isinstance(exponent, int):
        if base.bit_length() * max(exponent, 1) > MAX_BITS:
            raise InvalidToolCall("The value is too large.")
        return _check_size(base**exponent)
    value: Number = float(base) ** float(exponent)
    return value


def _check_size(value: Number) -> Number:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise InvalidToolCall("The value is too large.")
    return value
