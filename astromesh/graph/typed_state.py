"""The typed state of a graph: fields of a class, with types, defaults and reducers.

The fields are keys of the context, so that flags, branches, records and untyped nodes see them. A function
of a typed graph gets an instance of the class, and returns an update. Only the fields of an update are
validated.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from copy import copy
from functools import partial
from operator import itemgetter
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from astromesh.errors import InvalidInput, InvalidStateUpdate, UnknownStateKey, is_failure, text_of
from astromesh.graph.model_output import type_adapter
from astromesh.graph.nodes.function import FunctionNode
from astromesh.graph.state import GraphState, Reducer, engine_write
from astromesh.text import did_you_mean

#: Types whose empty value is the start of a field without a default.
_EMPTY = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes)
#: parameters of a function that wraps the validation of a field: value, handler, info
_WRAP_PARAMETERS = 3
#: Types of which every instance is valid and stays as it is. Of `str` one with a lone surrogate is not.
_TAKEN = (bool, int, float)
_UNCHANGING = frozenset({NoneType, str, int, float, bool, bytes})


class StateField(NamedTuple):
    """A field of a state.

    Args:
        validate: Returns a value as the type of the field, as its validators make it. Raises ValueError.
        convert: The same without functions of the class that validate the field, for values that have passed
            them.
        reducer: Joins the value and an update, or None: the update replaces the value.
        default: Makes the value at the start.
        reads_others: Whether a function that validates it takes `info`, whose `data` has the other fields.
        exact_type: The type whose instances `validate` returns as they are, or None.
    """

    validate: Callable[[Any], Any]
    convert: Callable[[Any], Any]
    reducer: Reducer | None
    default: Callable[[], Any]
    reads_others: bool = False
    exact_type: type | None = None


#: values of the other fields while one is validated
_OTHERS: ContextVar[Mapping[str, Any]] = ContextVar("astromesh_state_fields")


class _FieldInfo:
    """The `ValidationInfo` of pydantic, with the other fields of the state as `data`."""

    def __init__(self, info: Any) -> None:
        self._info, self.data = info, dict(_OTHERS.get())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._info, name)


def _with_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that validates a field and finds the other fields in its `info`."""
    if len(inspect.signature(function).parameters) == _WRAP_PARAMETERS:
        return lambda value, handler, info: function(value, handler, _FieldInfo(info))
    return lambda value, info: function(value, _FieldInfo(info))


class StateSchema:
    """What a graph knows of the class of its state.

    Args:
        kind: A pydantic model, dataclass or TypedDict. `Annotated[list[str], add]` gives a field a reducer.

    Raises:
        TypeError: It is another class, or a type cannot be validated.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.name: str = getattr(kind, "__name__", repr(kind))
        self._defaults = _defaults_of(kind)
        self.fields = {name: self._field(name, hint) for name, hint in _hints_of(kind).items()}
        #: join what branches write; the joined value is checked as each update was
        self.reducers: dict[str, Reducer] = {
            name: partial(_joined, one) for name, one in self.fields.items() if one.reducer is not None
        }
        self._validators = {
            n: one.validate for n, one in self.fields.items() if one.reducer is None and not one.reads_others
        }
        #: the type whose instances a field takes as they are, or None, of each field in `_validators`
        self._exact_types = {name: self.fields[name].exact_type for name in self._validators}
        self._constants = {n: one.default() for n, one in self.fields.items() if _is_constant(one.default)}
        self._made = {n: one.default for n, one in self.fields.items() if n not in self._constants}
        self._make = _maker_of(kind)
        self._values_of = _reader(self.fields)
        self._instances: Any = dict if is_typeddict(kind) else kind

    def initial(self, source: Any = None, *, is_record: bool = False) -> dict[str, Any]:
        """Returns the values of all fields at the start of a run.

        Args:
            source: An instance of the class, a mapping with some of the fields, or None.
            is_record: Whether a record has the values, which were validated before.

        Raises:
            InvalidInput: It has unknown fields, or invalid values.
        """
        values = self._constants.copy()
        for name, make in self._made.items():
            values[name] = make()
        if source is None:
            return values
        if not isinstance(source, Mapping | self._instances):
            raise InvalidInput(f"The state must be a {self.name} or a mapping, not {type(source).__name__}.")
        is_valid = is_record or not isinstance(source, Mapping)
        token = _OTHERS.set(values)
        try:
            for name, value in self._items(source):
                field = self._field_named(name)
                values[name] = (field.convert if is_valid else field.validate)(value)
        except UnknownStateKey as error:
            raise InvalidInput(f"The state is not valid: {error}") from error
        except ValueError as error:
            raise InvalidInput(f"The state is not valid: {name}: {error}") from error
        finally:
            _OTHERS.reset(token)
        return values

    def read(self, context: Mapping[str, Any]) -> Any:
        """Returns the state as an instance of the class. Its values are those of the context."""
        try:
            values = self._values_of(context)
        except KeyError:  # somebody has removed one
            values = {n: context[n] if n in context else one.default() for n, one in self.fields.items()}
        return values if self._make is None else self._make(values)

    def is_update(self, value: Any) -> bool:
        """Whether a value that a function returns is an update of the state."""
        return type(value) is dict or isinstance(value, self._instances)

    def update(self, state: GraphState, update: Any) -> None:
        """Writes an update to the context.

        Raises:
            UnknownStateKey: It has a key that is no field. Nothing was written.
            InvalidStateUpdate: A value does not fit its field. Nothing was written.
        """
        context = state.context
        if state.updates is not None or type(update) is not dict or type(context) is not dict:
            self._update_any(state, update)
            return
        validators, exact_types = self._validators, self._exact_types
        try:
            if len(update) == 1:  # as most updates
                (name,) = update
                value = update[name]
                context[name] = value if type(value) is exact_types[name] else validators[name](value)
                return
            made = {}
            for name in update:
                value = update[name]
                made[name] = value if type(value) is exact_types[name] else validators[name](value)
        except (KeyError, TypeError, ValueError):  # the other way says what is wrong
            self._update_any(state, update)
        else:
            context.update(made)

    def _update_any(self, state: GraphState, update: Any) -> None:
        """Writes an update that has reducers, is of a branch, or is not valid."""
        context = state.context
        items = update.items() if type(update) is dict else self._changes(update, context)
        made: dict[str, Any] = {}
        is_instance = not isinstance(update, Mapping)
        for name, value in items:
            field = self.fields.get(name) or self._field_named(name)
            validate = field.convert if is_instance else field.validate
            token = None
            if field.reads_others:
                token = _OTHERS.set({**{n: context[n] for n in self.fields if n in context}, **made})
            try:
                if field.reducer is not None and name in context:
                    made[name] = validate(field.reducer(context[name], value))
                else:
                    made[name] = validate(value)
            except BaseException as error:  # a reducer and a validator are foreign code
                if not is_failure(error):
                    raise
                raise InvalidStateUpdate(f"The update of {name!r} is not valid: {text_of(error)}") from error
            finally:
                if token is not None:
                    _OTHERS.reset(token)
        for name, value in made.items():
            engine_write(context, name, value)
        if state.updates is not None:
            for name, value in items:
                state.updates.setdefault(name, []).append(value)

    def restore(self, state: GraphState, writes: Mapping[str, Any]) -> None:
        """Makes values of their types of what a record has written as JSON."""
        for name in self.fields.keys() & writes.get("context", {}).keys():
            engine_write(state.context, name, self._restored(name, state.context[name]))
        for name, values in writes.get("updates", {}).items():
            if state.updates is not None and values:
                updates = state.updates[name]
                updates[-len(values) :] = [self._restored(name, one) for one in updates[-len(values) :]]

    def _restored(self, name: str, value: Any) -> Any:
        try:
            return self.fields[name].convert(value) if name in self.fields else value
        except ValueError:  # the field was changed, or its updates have another type
            return value

    def _changes(self, update: Any, context: Mapping[str, Any]) -> list[tuple[str, Any]]:
        """Returns the fields of an instance that are not as they were, or the items of a mapping."""
        if isinstance(update, Mapping):
            return list(update.items())
        return [(name, value) for name, value in self._items(update) if context.get(name, self) is not value]

    def adapted(self, node: FunctionNode) -> FunctionNode:
        """Returns a node whose function gets an instance, and with two arguments the GraphState too."""
        if node.isolation or type(node).execute is not FunctionNode.execute:
            return node
        function = node.function
        call = self._caller_with_run(function) if node.arity > 1 else self._caller(function)

        def call_in_thread(*arguments: Any) -> tuple[Any]:
            return (call(*arguments),)

        typed_node = copy(node)
        typed_node.function, typed_node.arity = call, 1
        typed_node._in_thread = call_in_thread  # noqa: SLF001 (a copy of the node)
        return typed_node

    def _caller_with_run(self, function: Callable[..., Any]) -> Callable[[GraphState], Any]:
        def call(state: GraphState) -> Any:
            return function(self.read(state.context), state)

        return call

    def _caller(self, function: Callable[..., Any]) -> Callable[[GraphState], Any]:
        """Returns the call of a function with the state: `read`, without a call for each of its parts."""
        values_of, make, read = self._values_of, self._make, self.read

        def call(state: GraphState) -> Any:
            try:
                values = values_of(state.context)
            except KeyError:  # somebody has removed one
                return function(read(state.context))
            return function(values if make is None else make(values))

        return call

    def _field_named(self, name: str) -> StateField:
        field = self.fields.get(name)
        if field is None:
            raise UnknownStateKey(f"{self.name} has no field {name!r}.{self.suggestion(name)}")
        return field

    def suggestion(self, name: str) -> str:
        """Returns a sentence with the field that a wrong name may mean, or an empty string."""
        return " " + (did_you_mean(str(name), self.fields) or f"It has {', '.join(self.fields)}.")

    def _items(self, values: Any) -> list[tuple[str, Any]]:
        if isinstance(values, Mapping):
            return list(values.items())
        fields_set = getattr(values, "model_fields_set", None)
        return [
            (name, getattr(values, name)) for name in self.fields if fields_set is None or name in fields_set
        ]

    def _field(self, name: str, hint: Any) -> StateField:
        reducer = (
            next((one for one in get_args(hint)[1:] if _is_reducer(one)), None)
            if _is_annotated(hint)
            else None
        )
        default = self._defaults.get(name) or _empty_maker(hint)
        config = getattr(self.kind, "model_config", None) or getattr(self.kind, "__pydantic_config__", None)
        bare = _without(hint, reducer)
        convert = _validator(bare, config)
        functions, reads_others = _validators_of(self.kind, name)
        validate = _validator(Annotated[bare, *functions], config) if functions else convert
        exact_type = hint if not (functions or config) and hint in _TAKEN else None
        return StateField(validate, convert, reducer, default, reads_others, exact_type)


def _reader(names: Iterable[str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns a function that reads the fields of a context. It raises KeyError if one is missing.

    A display of a few fields takes a third of the time of a loop over them.
    """
    match tuple(names):
        case (a,):
            return lambda context: {a: context[a]}
        case (a, b):
            return lambda context: {a: context[a], b: context[b]}
        case (a, b, c):
            return lambda context: {a: context[a], b: context[b], c: context[c]}
        case (a, b, c, d):
            return lambda context: {a: context[a], b: context[b], c: context[c], d: context[d]}
        case fields:
            values = itemgetter(*fields) if fields else tuple
            return lambda context: dict(zip(fields, values(context), strict=True))


def _joined(field: StateField, value: Any, update: Any) -> Any:
    """Raises: ValueError: the joined value breaks a rule of the field."""
    assert field.reducer is not None
    return field.convert(field.reducer(value, update))


def _hints_of(kind: Any) -> dict[str, Any]:
    is_state = isinstance(kind, type) and (
        is_typeddict(kind) or dataclasses.is_dataclass(kind) or hasattr(kind, "model_fields")
    )
    if not is_state:
        raise TypeError(
            f"The state of a graph is a pydantic model, a dataclass or a TypedDict, not {kind!r}."
        )
    hints = get_type_hints(kind, include_extras=True)
    names = getattr(kind, "model_fields", None) or hints
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    declared = getattr(kind, "__pydantic_fields__", {})  # with the constraints of `Field`
    return {
        name: _bare(declared[name].rebuild_annotation() if name in declared else hints[name])
        for name in names
    }


def _bare(hint: Any) -> Any:
    """Returns a type without `Required` and `NotRequired`."""
    while get_origin(hint) in (Required, NotRequired):
        (hint,) = get_args(hint)
    if not _is_annotated(hint):
        return hint
    base, *others = get_args(hint)
    return Annotated[_bare(base), *others]


def _validators_of(kind: Any, name: str) -> tuple[list[Any], bool]:
    """Returns the functions of a pydantic class that validate a field, as `Annotated` holds them.

    The second value says whether one of them takes `info`.
    """
    decorators = getattr(kind, "__pydantic_decorators__", None)
    if decorators is None:
        return [], False
    pydantic = importlib.import_module("pydantic")
    found: list[Any] = []
    reads_others = False
    for one in decorators.field_validators.values():
        if not {name, "*"} & {*one.info.fields}:
            continue
        function = one.func
        if len(inspect.signature(function).parameters) > (
            _WRAP_PARAMETERS - 1 if one.info.mode == "wrap" else 1
        ):
            function, reads_others = _with_others(function), True
        found.append(getattr(pydantic, f"{one.info.mode.capitalize()}Validator")(function))
    return found, reads_others


def _defaults_of(kind: Any) -> dict[str, Callable[[], Any]]:
    if dataclasses.is_dataclass(kind):
        found: dict[str, Callable[[], Any]] = {}
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                found[field.name] = partial(_constant_of, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory
        return found
    fields = getattr(kind, "model_fields", {})
    return {name: _model_default(field) for name, field in fields.items() if not field.is_required()}


def _model_default(field: Any) -> Callable[[], Any]:
    if field.default_factory is None and type(field.default) in _UNCHANGING:
        return partial(_constant_of, field.default)
    return partial(field.get_default, call_default_factory=True)


def _constant_of(value: Any) -> Any:
    return value


def _maker_of(kind: Any) -> Callable[[dict[str, Any]], Any] | None:
    """Returns a function that makes an instance of values that are valid. A model notes what is set later.

    A TypedDict is the values themselves: None.
    """
    if is_typeddict(kind):
        return None
    new, put = object.__new__, object.__setattr__
    if hasattr(kind, "model_fields"):
        set_values, set_fields, set_extra, set_private = (
            _setter(kind, f"__{name}__")
            for name in ("dict", "pydantic_fields_set", "pydantic_extra", "pydantic_private")
        )

        def make_model(values: dict[str, Any]) -> Any:
            made = new(kind)
            set_values(made, values)
            set_fields(made, set())
            set_extra(made, None)
            set_private(made, None)
            return made

        return make_model

    def make(values: dict[str, Any]) -> Any:
        made = new(kind)
        for name, value in values.items():
            put(made, name, value)
        return made

    if hasattr(kind, "__slots__"):
        return make
    set_all = _setter(kind, "__dict__")

    def make_plain(values: dict[str, Any]) -> Any:
        made = new(kind)
        set_all(made, values)
        return made

    return make_plain


def _setter(kind: type, name: str) -> Callable[[Any, Any], None]:
    """Returns the function that sets an attribute, whatever `__setattr__` of the class says."""
    owner = next(one for one in kind.__mro__ if name in vars(one))
    setter: Callable[[Any, Any], None] = vars(owner)[name].__set__
    return setter


def _is_annotated(hint: Any) -> bool:
    return get_origin(hint) is Annotated


def _is_reducer(value: Any) -> bool:
    return inspect.isroutine(value) or isinstance(value, partial)


def _without(hint: Any, reducer: Any) -> Any:
    if reducer is None:
        return hint
    base, *others = get_args(hint)
    others = [one for one in others if one is not reducer]
    return Annotated[base, *others] if others else base


def _empty_maker(hint: Any) -> Callable[[], Any]:
    """Returns what makes the empty value of a type: None, if it has no other."""
    if _is_annotated(hint):
        return _empty_maker(get_args(hint)[0])
    origin = get_origin(hint) or hint
    if origin in (Union, UnionType) and NoneType not in get_args(hint):
        return _empty_maker(get_args(hint)[0])
    empty: Callable[[], Any] = origin if origin in _EMPTY else NoneType
    return empty


def _is_constant(make: Callable[[], Any]) -> bool:
    """Whether a default is always one value that nobody can change."""
    return make in _UNCHANGING or (
        isinstance(make, partial) and make.func is _constant_of and type(make.args[0]) in _UNCHANGING
    )


def _validator(hint: Any, config: Any) -> Callable[[Any], Any]:
    validate: Callable[[Any], Any] = type_adapter(hint, config).validator.validate_python
    return validate
