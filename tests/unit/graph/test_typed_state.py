"""Graphs with a typed state: fields, defaults, reducers, updates."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, NotRequired, Required, TypedDict

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from astromesh.errors import InvalidInput, InvalidStateUpdate, UnknownStateKey
from astromesh.graph import (
    Command,
    FanOutNode,
    FunctionNode,
    GraphState,
    GuardNode,
    NodeFlag,
    NodeResult,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    SubgraphNode,
    node,
)
from astromesh.testing import ScriptedProvider


class Model(BaseModel):
    topic: str
    count: Annotated[int, Field(ge=0)] = 3
    log: Annotated[list[str], operator.add] = []


@dataclass
class Data:
    topic: str
    count: int = 3
    log: Annotated[list[str], operator.add] = field(default_factory=list)


class Typed(TypedDict):
    topic: str
    count: int
    log: Annotated[list[str], operator.add]


def value_of(state: Any, name: str) -> Any:
    return state[name] if isinstance(state, dict) else getattr(state, name)


def updates(name: str, value: Any, **keywords: Any) -> FunctionNode:
    """An async node that returns an update, or what a function makes of the state."""

    async def body(state):
        return value(state) if callable(value) else value

    return FunctionNode(name, body, **keywords)


async def run(kind: Any, *nodes: Any, state: Any = None, script: Any = (), **arguments: Any):
    graph = PromptGraph("g", nodes=nodes, state=kind).sequential(*(one.name for one in nodes))
    return await PromptGraphEngine(graph, ScriptedProvider(*script)).ainvoke("q", state=state, **arguments)


@pytest.mark.parametrize("kind", [Model, Data, Typed])
async def test_nodes_get_an_instance_and_return_an_update(kind: Any) -> None:
    """Of a pydantic model, a dataclass or a TypedDict; the result holds the state at the end."""
    seen: list[Any] = []

    def look(state: Any) -> Any:
        seen.append(state)
        return {"topic": "tea", "log": ["a"]}

    result = await run(kind, updates("a", look), updates("b", lambda s: {"log": [value_of(s, "topic")]}))
    assert result.ok, result.error
    assert isinstance(seen[0], dict if kind is Typed else kind)
    assert (value_of(seen[0], "topic"), value_of(seen[0], "log")) == ("", [])
    assert value_of(seen[0], "count") == (0 if kind is Typed else 3)
    assert (value_of(result.state, "topic"), value_of(result.state, "log")) == ("tea", ["a", "tea"])
    assert isinstance(result.state, dict if kind is Typed else kind)


async def test_both_ways_of_writing_a_typed_graph_are_the_same() -> None:
    """`PromptGraph[State](name)` is `PromptGraph(name, state=State)`."""
    graph = PromptGraph[Model]("g", nodes=[updates("a", {"count": 4})])
    assert graph.schema is not None
    assert graph.schema.kind is Model
    assert (await PromptGraphEngine(graph).ainvoke("q")).state.count == 4


@pytest.mark.parametrize("inline", [True, False])
async def test_plain_functions_and_functions_of_two_arguments(inline: bool) -> None:
    """`(state, run)`: the second is the GraphState, with messages and the untyped context."""
    seen: list[Any] = []

    @node("f", inline=inline)
    def two(state: Model, run: GraphState) -> dict[str, Any]:
        seen.extend([state.topic, run.question, run.context["free"]])
        run.context["own"] = 1
        return {"count": state.count + 1}

    result = await run(Model, two, state={"topic": "tea"}, context={"free": "yes"})
    assert seen == ["tea", "q", "yes"]
    assert (result.state.count, result.context["own"]) == (4, 1)


async def test_a_whole_state_and_a_command_are_updates_too() -> None:
    """Of a model only the fields that were set; a Command may choose one of the declared targets."""
    graph = PromptGraph("g", state=Model)
    graph.add_node(updates("a", Command({"topic": "x"}, goto="c"))).add_node(updates("b", {"count": 9}))
    graph.add_node(updates("c", Model(topic="set"))).always("a", "b").when("a", "c", lambda r: False)
    result = await PromptGraphEngine(graph).ainvoke("q", state={"count": 7})
    assert result.report.nodes_visited == ["a", "c"]
    assert (result.state.topic, result.state.count) == ("set", 7)
    wrong = PromptGraph("g", nodes=[updates("a", Command(goto="b")), updates("b", {})], state=Model)
    result = await PromptGraphEngine(wrong.when("b", "a", bool)).ainvoke("q")
    assert "'a' may not go to 'b', which is not one of its targets" in result.error


async def test_a_command_does_not_go_past_a_guard() -> None:
    """As no target that stands only in `routes` does."""
    nodes = [
        updates("a", Command(goto="end"), routes=["end"]),
        GuardNode("g", guards=[bool]),
        updates("end", {}),
    ]
    graph = PromptGraph("g", nodes=nodes, state=Model).sequential("a", "g", "end")
    result = await PromptGraphEngine(graph).ainvoke("q")
    assert "may not go to 'end'" in result.report.errors[0].message
    assert "end" not in result.report.nodes_visited


@pytest.mark.parametrize("kind", [Model, Data])
async def test_an_instance_that_was_changed_is_an_update_of_what_has_changed(kind: Any) -> None:
    """Fields that are as they were are not reduced again."""

    def change(state: Any) -> Any:
        state.count += 1
        return state

    result = await run(kind, updates("a", change), state={"log": ["x"]})
    assert (result.state.count, result.state.log) == (4, ["x"])
    partial_log = await run(Model, updates("a", {"log": ["y"]}), state={"log": ["x"]})
    assert partial_log.state.log == ["x", "y"]


async def test_unknown_and_invalid_updates_fail_their_node_and_write_nothing() -> None:
    """With the nearest name; only the fields of an update are validated."""
    result = await run(Model, updates("a", {"topic": "x", "cuont": 1}))
    cause = result.report.errors[0].exception
    assert isinstance(cause, UnknownStateKey)
    assert cause.code == "unknown_state_key"
    assert "Model has no field 'cuont'. Did you mean `count`?" in result.error
    assert result.state.topic == ""
    result = await run(Model, updates("a", {"topic": "x", "count": -1}))
    assert isinstance(result.report.errors[0].exception, InvalidStateUpdate)
    assert "The update of 'count' is not valid" in result.error
    assert result.state.topic == ""
    free = await run(Model, updates("a", {"topic": "fine"}), context={"count": "never validated"})
    assert (free.ok, free.state.count) == (True, "never validated")


async def test_input_is_validated() -> None:
    """An instance or a mapping; of an untyped graph there is no state."""
    for wrong, why in (({"count": -1}, "state.*count"), ({"topics": 1}, "state.*topics"), (5, "state")):
        with pytest.raises(InvalidInput, match=why):
            await run(Model, updates("a", {}), state=wrong)
    with pytest.raises(InvalidInput, match="has no typed state"):
        await run(None, updates("a", 1), state={"topic": "x"})
    assert (await run(Model, updates("a", {}), state=Model(topic="x", log=["y"]))).state.log == ["y"]
    assert (await run(None, updates("a", {"any": 1}))).state is None


async def test_without_a_reducer_the_last_write_wins_and_parallel_writes_are_an_error() -> None:
    """One that names both nodes. With a reducer each update counts once, in the order of the nodes."""
    result = await run(Model, updates("a", {"count": 1}), updates("b", {"count": 2}))
    assert result.state.count == 2
    both = ParallelNode("p", [updates("a", {"count": 1}), updates("b", {"count": 2})])
    assert (
        "'a' and 'b' ran at once and wrote different values under 'count'" in (await run(Model, both)).error
    )
    log = ParallelNode("p", [updates("a", {"log": ["a"]}), updates("b", {"log": ["b"]})])
    assert (await run(Model, log, state={"log": ["0"]})).state.log == ["0", "a", "b"]
    items = FanOutNode("f", updates("w", lambda s: {"log": ["w"]}), [1, 2, 3])
    assert (await run(Model, items)).state.log == ["w"] * 3


async def test_each_update_of_a_branch_is_reduced_once() -> None:
    """Also of several nodes in one branch, and of branches that meet in steps."""
    nodes = [updates(name, {"log": [name]}) for name in ("s", "a", "a2", "b", "x", "c", "j")]
    graph = PromptGraph("g", nodes=nodes, state=Model).fork("s", "a", "b", "c")
    graph.sequential("a", "a2", "x").always("b", "x").always("x", "j").always("c", "j")
    result = await PromptGraphEngine(graph).ainvoke("q")
    assert result.state.log == ["s", "a", "a2", "b", "x", "c", "j"]


async def test_output_keys_are_updates_of_their_field() -> None:
    """Also of nodes that are no functions: validated and reduced."""
    result = await run(Model, PromptNode("p", output_key="topic"), script=["tea"])
    assert (result.state.topic, result.context["topic"]) == ("tea", "tea")
    bad = await run(Model, PromptNode("p", output_key="count"), script=["tea"])
    assert "The update of 'count' is not valid" in bad.error
    worker = updates("w", lambda s: ["x"], output_key="log")
    assert (await run(Model, worker, updates("again", lambda s: ["y"], output_key="log"))).state.log == [
        "x",
        "y",
    ]


async def test_nested_graphs_share_the_state() -> None:
    """A typed graph in a typed one; nodes of an untyped graph in it see the fields in the context."""
    inner = PromptGraph("inner", nodes=[updates("x", lambda s: {"count": s.count + 1})], state=Model)
    free = PromptGraph("free", nodes=[updates("y", lambda s: s.context["count"])])
    result = await run(Model, SubgraphNode("n", inner), SubgraphNode("m", free))
    assert (result.state.count, result.output) == (4, 4)


async def test_readonly_nodes_may_not_update() -> None:
    """Their answers are outputs."""
    result = await run(Model, updates("a", {"count": 1}, flags={NodeFlag.READONLY}))
    assert "'a' is READONLY and may not update the state" in result.error
    assert (await run(Model, updates("a", "text", flags={NodeFlag.READONLY}))).output == "text"


def test_validate_finds_keys_that_the_state_does_not_have() -> None:
    """Those that nodes declare, with the nearest name. Outputs by name are known."""
    nodes = [
        PromptNode("a", input_keys=["topik"]),
        PromptNode("b", output_key="cuont", input_keys=["a_output"]),
    ]
    graph = PromptGraph("g", nodes=nodes, state=Model).always("a", "b")
    assert graph.validate() == [
        "Node 'a': input_keys: Model has no field 'topik'. Did you mean `topic`?",
        "Node 'b': output_key: Model has no field 'cuont'. Did you mean `count`?",
    ]


def test_the_class_is_checked_and_written_by_name() -> None:
    """A class of another kind, or with a type that cannot be validated, is an error at once."""
    for wrong in (int, "Model", object):
        with pytest.raises(TypeError, match="pydantic model, a dataclass or a TypedDict"):
            PromptGraph(state=wrong)  # type: ignore[arg-type]
    data = PromptGraph("g", nodes=[PromptNode("p")], state=Model).to_config()
    assert data["state"] == f"{__name__}:Model"
    assert "reducers" not in data
    again = PromptGraph.from_config(data)
    assert again.to_config() == data
    assert again.schema is not None
    assert again.schema.kind is Model


@pytest.mark.parametrize("kind", [Model, Data, Typed])
async def test_a_field_that_a_node_removed_starts_again(kind: Any) -> None:
    """Nodes with two arguments reach the context itself."""

    async def remove(state: Any, run: GraphState) -> None:
        del run.context["count"]

    result = await run(
        kind, FunctionNode("a", remove), updates("b", lambda s: {"topic": str(value_of(s, "count"))})
    )
    assert result.ok, result.error
    assert value_of(result.state, "topic") == ("0" if kind is Typed else "3")


async def test_an_update_in_hooks_and_one_without_are_the_same() -> None:
    """Without hooks and flags the loop writes it itself."""

    class Sees:
        def post_node(self, node: Any, result: Any, state: Any) -> None: ...

    async def total(hooks: Any) -> Any:
        nodes = [
            updates("a", {"topic": "tea"}),
            updates("b", Command({"count": 7})),
            updates("c", NodeResult(output={"log": ["c"]})),
            updates("d", "a text is no update"),
        ]
        graph = PromptGraph("g", nodes=nodes, state=Data).sequential(*"abcd")
        return (await PromptGraphEngine(graph, hooks=hooks).ainvoke("q")).state

    assert await total([]) == await total([Sees()]) == Data("tea", 7, ["c"])


async def test_what_fails_in_an_update_fails_the_node_without_hooks_too() -> None:
    """The exception is that of the update."""
    result = await run(Data, updates("a", Command({"topc": "x"})))
    assert "topc" in result.error
    assert isinstance(result.report.errors[0].exception, UnknownStateKey)


class Checked(BaseModel):
    """Fields whose rules stand in `Field`, in validators and in the configuration of the class."""

    model_config = ConfigDict(str_strip_whitespace=True, arbitrary_types_allowed=True)

    count: int = Field(0, ge=0)
    short: str = Field("", max_length=2)
    tens: int = 0
    log: Annotated[list[str], operator.add] = Field(default=[], max_length=2)
    own: Own | None = None

    @field_validator("tens")
    @classmethod
    def _times_ten(cls, value: int) -> int:
        if value < 0:
            raise ValueError("must not be negative")
        return value * 10


class Own:
    """A class that pydantic does not know."""


Checked.model_rebuild()


async def test_rules_of_a_field_hold_for_what_branches_join() -> None:
    nodes = [updates(name, {"log": [name]}) for name in ("a", "b", "c")]
    for graph in (
        PromptGraph[Checked]("g", nodes=[ParallelNode("all", nodes)]),
        PromptGraph[Checked]("g", nodes=[updates("s", {}), *nodes]).fork("s", "a", "b", "c"),
    ):
        result = await PromptGraphEngine(graph).ainvoke("q")
        assert "log" in result.report.error
        assert "at most 2" in result.report.error
        assert result.state.log == []


class Range(BaseModel):
    low: int = 0
    high: int = 9

    @field_validator("high")
    @classmethod
    def _above(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data["low"]:
            raise ValueError("is below low")
        return value


async def test_a_validator_finds_the_other_fields() -> None:
    def engine(*made: dict[str, Any]) -> PromptGraphEngine[Range]:
        nodes = [updates(f"n{n}", one) for n, one in enumerate(made)]
        graph = PromptGraph[Range]("g", nodes=nodes)
        for one, after in pairwise(nodes):
            graph.always(one.name, after.name)
        return PromptGraphEngine(graph)

    fits = await engine({"low": 5}, {"high": 7}).ainvoke("q")
    assert (fits.ok, fits.state) == (True, Range(low=5, high=7))
    below = await engine({"low": 5}, {"high": 3}).ainvoke("q")
    assert "is below low" in below.report.error
    together = await engine({"low": 5, "high": 3}).ainvoke("q")
    assert "is below low" in together.report.error
    with pytest.raises(InvalidInput, match="is below low"):
        await engine({}).ainvoke("q", state={"low": 5, "high": 3})


@pytest.mark.parametrize(
    "update", [{"count": -1}, {"short": "abc"}, {"tens": -1}, {"log": ["a", "b", "c"]}, {"own": 5}]
)
async def test_rules_of_a_field_hold_for_updates_and_input(update: dict[str, Any]) -> None:
    engine = PromptGraphEngine(PromptGraph[Checked]("g", nodes=[updates("a", update)]))
    result = await engine.ainvoke("q")
    assert "is not valid" in result.report.error
    assert result.state == Checked()
    with pytest.raises(InvalidInput, match="is not valid"):
        await engine.ainvoke("q", state=update)


async def test_validators_of_a_field_change_each_update_once() -> None:
    own = Own()
    graph = PromptGraph[Checked](
        "g", nodes=[updates("a", {"tens": 2, "short": " b "}), updates("b", {"own": own})]
    )
    engine = PromptGraphEngine(graph.always("a", "b"))
    result = await engine.ainvoke("q", state=Checked(tens=1, count=4))
    assert result.state == Checked.model_construct(tens=20, short="b", count=4, own=own)
    unchanged = PromptGraph[Checked]("g", nodes=[updates("a", lambda state: state)])
    assert (await PromptGraphEngine(unchanged).ainvoke("q", state=Checked(tens=1))).state.tens == 10
    made = PromptGraph[Checked]("g", nodes=[updates("a", Checked(tens=3))])
    assert (await PromptGraphEngine(made).ainvoke("q")).state.tens == 30


class Partly(TypedDict):
    count: Required[int]
    name: NotRequired[str]
    log: NotRequired[Annotated[list[str], operator.add]]
    more: Annotated[NotRequired[list[str]], operator.add]


async def test_typed_dicts_may_say_what_is_required() -> None:
    graph = PromptGraph[Partly]("g", nodes=[updates("a", {"log": ["a"], "more": ["b"], "name": "n"})])
    result = await PromptGraphEngine(graph).ainvoke("q", state={"log": ["0"], "more": ["0"]})
    assert result.state == {"count": 0, "name": "n", "log": ["0", "a"], "more": ["0", "b"]}
