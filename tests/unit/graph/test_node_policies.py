"""The keywords `retry`, `cache` and `parameters` of nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from astromesh.errors import ProviderTimeout, ProviderUnauthorized
from astromesh.graph import (
    CachePolicy,
    Command,
    FunctionNode,
    NodeFlag,
    ParallelNode,
    PromptGraph,
    PromptGraphEngine,
    PromptNode,
    RetryPolicy,
    RouterNode,
)
from astromesh.testing import ManualClock, ScriptedProvider
from astromesh.types import CallerContext, ToolCall


class Flaky:
    """A function that raises errors in turn, then returns how often it was called."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls = list(errors), 0

    def node(self, name: str = "n", **keywords: Any) -> FunctionNode:
        async def work(state: Any) -> Any:
            self.calls += 1
            if self.errors:
                raise self.errors.pop(0)
            return self.calls

        return FunctionNode(name, work, **keywords)


class PatientClock(ManualClock):
    """Notes the pauses and does not wait for them."""

    def __init__(self) -> None:
        super().__init__(1_700_000_000.0)
        self.pauses: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)


class Down(ConnectionError):
    """A failure of a service."""


async def run(node: FunctionNode | PromptNode, model: Any = None, **keywords: Any) -> Any:
    return await PromptGraphEngine(PromptGraph(nodes=[node]), model, **keywords).ainvoke("q")


# -- retry ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on", [(ConnectionError,), ConnectionError, "ConnectionError", ["Down", ValueError]])
async def test_only_the_named_exceptions_and_their_subclasses_are_tried_again(on: Any) -> None:
    policy = RetryPolicy(attempts=3, on=on, delay=0)
    flaky = Flaky(Down("away"), Down("away"))
    assert (await run(flaky.node(retry=policy))).output == 3
    flaky = Flaky(Down("away"), KeyError("k"))
    result = await run(flaky.node(retry=policy))
    assert (flaky.calls, "KeyError" in result.error) == (2, True)


async def test_the_first_policy_that_covers_a_failure_counts() -> None:
    """Each with its own attempts and pauses; the pauses grow up to their limit."""
    clock = PatientClock()
    policies = [
        RetryPolicy(2, on="Down", delay=9, max_delay=9),
        RetryPolicy(5, delay=1, factor=3, max_delay=5),
    ]
    flaky = Flaky(ValueError(), ValueError(), ValueError(), Down())
    result = await run(flaky.node(retry=policies), clock=clock, seed=1)
    assert not result.ok
    assert flaky.calls == 4
    assert [round(pause) for pause in clock.pauses] == [1, 3, 5]
    clock.pauses.clear()
    assert (await run(Flaky(Down()).node(retry=policies), clock=clock)).ok
    assert 9 <= clock.pauses[0] < 10


async def test_a_number_is_attempts_and_visits_keep_their_own_limit() -> None:
    flaky = Flaky(*[Down()] * 3)
    node = flaky.node(retry=4, max_iterations=1)
    assert (await run(node, clock=PatientClock())).output == 4
    assert NodeFlag.RETRYABLE in node.flags


async def test_failures_of_providers_are_covered_by_name() -> None:
    """What another attempt cannot change is tried again only if a policy names it."""
    errors = [ProviderTimeout("slow"), ProviderUnauthorized("key")]
    for on, calls in (((), 2), (("ProviderTimeout",), 2), (("ProviderUnauthorized", "ProviderTimeout"), 3)):
        model = ScriptedProvider(*errors, "fine")
        policy = RetryPolicy(attempts=3, on=on, delay=0)
        await run(PromptNode("n", retry=policy), model)
        assert len(model.requests) == calls


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "retry: attempts must be at least 1"),
        ({"attemps": 3}, "retry has no key 'attemps'"),
        (RetryPolicy(on=[3]), "on takes classes of exceptions, or their names, not 3"),  # type: ignore[list-item]
        (RetryPolicy(delay=-1), "delay must be a number of at least 0"),
        ("often", "takes a number of attempts, a RetryPolicy, or several"),
    ],
)
def test_wrong_policies_are_refused(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        PromptNode("n", retry=value)


# -- cache ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["engine", "memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return {"engine": None, "memory": "memory", "sqlite": f"sqlite:{tmp_path / 'g.db'}"}[request.param]


class Prices(BaseModel):
    item: str = ""
    total: int = 0


async def test_a_result_lasts_across_runs_until_its_time_is_over(store: str | None) -> None:
    """With what the node has written; another input is another result, and nothing is charged."""
    clock, calls = PatientClock(), []

    async def price(state: Any) -> Any:
        calls.append(state.context["item"])
        state.context["source"] = {"shop": len(calls)}
        state.observations.append("seen")
        return {"price": len(calls)}

    node = FunctionNode("price", price, cache=60, input_keys=["item"], output_key="found")
    engine = PromptGraphEngine(PromptGraph("p", nodes=[node]), clock=clock, store=store)
    first = await engine.ainvoke("a", context={"item": "tea"})
    again = await engine.ainvoke("another question", context={"item": "tea"})
    assert (first.output, again.output, calls) == ({"price": 1}, {"price": 1}, ["tea"])
    assert again.context == {**first.context}
    assert again.context["source"] == {"shop": 1}
    assert (await engine.ainvoke("a", context={"item": "milk"})).output == {"price": 2}
    clock.advance(61)
    assert (await engine.ainvoke("a", context={"item": "tea"})).output == {"price": 3}


async def test_a_store_is_shared_by_engines_and_an_engine_alone_is_not(tmp_path: Path) -> None:
    for store, calls in ((f"sqlite:{tmp_path / 'g.db'}", 1), (None, 2)):
        flaky = Flaky()
        graph = PromptGraph("g", nodes=[flaky.node(cache=60)])
        for _ in range(2):
            assert (await PromptGraphEngine(graph, store=store).ainvoke("q")).ok
        assert flaky.calls == calls


async def test_the_key_is_everything_that_a_node_without_inputs_sees() -> None:
    flaky = Flaky()
    engine = PromptGraphEngine(PromptGraph(nodes=[flaky.node(cache=60)]))
    for question, context in (("a", {}), ("b", {}), ("a", {"x": 1}), ("a", {})):
        await engine.ainvoke(question, context=context)
    assert flaky.calls == 3


async def test_a_key_of_its_own() -> None:
    """A function of the state, or a text that is changed with the code."""
    flaky = Flaky()
    by_language = CachePolicy(60, key=lambda state: state.context["language"])
    engine = PromptGraphEngine(PromptGraph(nodes=[flaky.node(cache=by_language)]))
    for question, language in (("a", "en"), ("b", "en"), ("b", "de")):
        await engine.ainvoke(question, context={"language": language})
    assert flaky.calls == 2
    flaky = Flaky()
    for version in ("v1", "v1", "v2"):
        node = flaky.node(cache={"seconds": 60, "key": version})
        engine.graph = PromptGraph(nodes=[node])
        engine._plan = None
        await engine.ainvoke("q")
    assert flaky.calls == 2


async def test_a_key_that_raises_fails_the_node() -> None:
    flaky = Flaky()
    broken = CachePolicy(60, key=lambda state: 1 / 0)
    result = await PromptGraphEngine(PromptGraph(nodes=[flaky.node(cache=broken)])).ainvoke("q")
    assert "`key` of the cache failed: ZeroDivisionError" in result.report.error
    assert flaky.calls == 0


async def test_callers_have_results_of_their_own_unless_they_are_shared() -> None:
    ada, eve = CallerContext(user_id="ada"), CallerContext(user_id="eve")
    for shared, calls in ((False, 2), (True, 1)):
        flaky = Flaky()
        engine = PromptGraphEngine(PromptGraph(nodes=[flaky.node(cache=CachePolicy(60, shared=shared))]))
        for caller in (ada, eve, ada):
            assert (await engine.ainvoke("q", caller=caller)).ok
        assert flaky.calls == calls


async def test_models_typed_states_and_children_are_cached_and_failures_and_commands_are_not() -> None:
    model = ScriptedProvider("one", "two", "three")
    engine = PromptGraphEngine(PromptGraph(nodes=[PromptNode("say", cache=60)]), model)
    for _ in range(2):
        result = await engine.ainvoke("q")
    assert (result.output, result.messages[-1].content, len(model.requests)) == ("one", "one", 1)
    assert result.report.usage.total_tokens == 0

    async def look(state: Prices) -> Any:
        calls.append(state.item)
        return {"total": 7}

    async def go(state: Prices) -> Any:
        calls.append("go")
        return Command({"total": 1})

    calls: list[str] = []
    both = ParallelNode("both", [FunctionNode("x", look, cache=60), FunctionNode("y", look)], cache=None)
    typed = PromptGraph("g", nodes=[both, FunctionNode("go", go, cache=60)], state=Prices).always(
        "both", "go"
    )
    engine = PromptGraphEngine(typed)
    for _ in range(2):
        result = await engine.ainvoke("q", state={"item": "tea"})
        assert result.state == Prices(item="tea", total=1)
    assert (calls.count("tea"), calls.count("go")) == (3, 2)
    flaky = Flaky(ValueError())
    engine = PromptGraphEngine(PromptGraph(nodes=[flaky.node(cache=60)]))
    assert not (await engine.ainvoke("q")).ok
    assert (await engine.ainvoke("q")).output == 2


async def test_what_json_cannot_carry_is_not_cached() -> None:
    flaky = Flaky()
    engine = PromptGraphEngine(PromptGraph(nodes=[flaky.node(cache=60)]))
    for _ in range(2):
        assert (await engine.ainvoke("q", context={"thing": object()})).ok
    assert flaky.calls == 2

    def write(state: Any) -> None:
        state.context["thing"] = write

    node = FunctionNode("write", write, cache=60, inline=True)
    result = await PromptGraphEngine(PromptGraph(nodes=[node])).ainvoke("q")
    assert (result.ok, result.context["thing"]) == (True, write)


async def test_a_resumed_run_does_as_it_did_before(tmp_path: Path) -> None:
    """A node that was not in the cache at first executes, though another run has filled it meanwhile."""
    model = ScriptedProvider("text", repeat=True)
    begun, goes = asyncio.Event(), asyncio.Event()
    say = PromptNode("say")

    async def both(state: Any, config: Any) -> Any:
        text = (await config.run(say, state)).output
        if state.context.get("waits"):
            begun.set()
            await goes.wait()
        return text

    node = FunctionNode("both", both, effect="read", cache=CachePolicy(60, key=lambda state: "same"))
    store = f"sqlite:{tmp_path / 'g.db'}"
    engine = PromptGraphEngine(PromptGraph(nodes=[node]), model, store=store)
    first = asyncio.create_task(engine.ainvoke("q", context={"waits": True}, run_id="first"))
    await begun.wait()
    assert (await engine.ainvoke("q")).ok
    taken = asyncio.create_task(PromptGraphEngine(engine.graph, model, store=store).resume("first"))
    await asyncio.sleep(0.1)
    goes.set()
    assert (await taken).output == "text"
    assert len(model.requests) == 2
    await asyncio.gather(first, return_exceptions=True)


@pytest.mark.parametrize(
    "value", [0, -1, "long", {"second": 3}, {"seconds": 3, "key": 4}, {"seconds": 3, "shared": 1}]
)
def test_wrong_cache_policies_are_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="Node 'n': cache"):
        PromptNode("n", cache=value)


# -- parameters ----------------------------------------------------------------------------------------------


async def test_parameters_go_with_every_call_of_the_node() -> None:
    """Not with those of other nodes; what a call itself sets comes first."""
    cool = PromptNode("cool", parameters={"temperature": 0, "max_tokens": 50}, tools=[lookup])
    route = RouterNode("route", routes={"end": "always"}, parameters={"seed": 7})
    graph = PromptGraph(nodes=[cool, route, PromptNode("end")]).always("cool", "route")
    model = ScriptedProvider(ToolCall("1", "lookup"), "cool", "end", "done")
    result = await PromptGraphEngine(graph, model).ainvoke("q")
    assert result.ok, result.error
    assert [dict(request.parameters) for request in model.requests] == [
        {"temperature": 0, "max_tokens": 50}, {"temperature": 0, "max_tokens": 50}, {"seed": 7}, {},
    ]  # fmt: skip


def lookup() -> str:
    """Looks up."""
    return "found"


def test_a_node_without_a_model_does_not_use_parameters() -> None:
    graph = PromptGraph(nodes=[FunctionNode("n", lambda state: 1, parameters={"temperature": 0})])
    assert graph.validate() == ["Node 'n': parameters: not used by a FunctionNode."]
    with pytest.raises(TypeError, match="parameters takes a mapping of names to values"):
        PromptNode("n", parameters=3)  # type: ignore[arg-type]


def test_yaml_has_all_three() -> None:
    node = PromptNode(
        "n",
        retry=[RetryPolicy(2, on=TimeoutError), RetryPolicy(4)],
        cache=60,
        parameters={"temperature": 0.5},
    )
    data = PromptGraph("g", nodes=[node]).to_config()["nodes"][0]
    assert data["retry"] == [{"attempts": 2, "on": ["TimeoutError"]}, {"attempts": 4}]
    assert (data["cache"], data["parameters"]) == (60, {"temperature": 0.5})
    read = PromptGraph.from_config({"nodes": [data]}).get_node("n")
    assert read.retry == (RetryPolicy(2, on=("TimeoutError",)), RetryPolicy(4))
    assert (read.cache, read.parameters) == (CachePolicy(60), {"temperature": 0.5})
    assert PromptGraph("g", nodes=[read]).to_config()["nodes"][0] == data
    short = PromptGraph.from_config(
        {"nodes": [{"name": "n", "retry": {"attempts": 5}, "cache": {"seconds": 1}}]}
    )
    assert short.get_node("n").retry == (RetryPolicy(5),)
