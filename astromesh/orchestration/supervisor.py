"""supervisor: decomposes a task, delegates to worker agents, collects (document 001, step 7).

decompose   the planner is offered the workers as tools; it calls them, or writes its delegations as JSON
delegate    nested runs of the workers, at once where independent; the run's own tools as well
answer      the supervisor answers, or asks for more: then it delegates again

At most `MOST_TASKS` delegations are made at a time, and none whose results nobody would read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from astromesh.abc.deps import Deps
from astromesh.abc.provider import ModelPort
from astromesh.abc.run import Outcome, PatternTask, RunAgent, Terms
from astromesh.abc.tool import ToolPort
from astromesh.errors import ConfigError, IterationsExhausted
from astromesh.graph.base import BaseNode
from astromesh.graph.config import NodeConfig
from astromesh.graph.extract import extract_values, whole_object
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.nodes import PromptNode, SynthesizeNode
from astromesh.graph.records import NodeResult
from astromesh.graph.state import GraphState
from astromesh.node.runner import together
from astromesh.node.scope import Scope
from astromesh.node.toolbox import JoinedTools, ToolBox
from astromesh.orchestration.briefing import apart
from astromesh.orchestration.delegation import Assignment, WorkerTool, assignments_in, waves
from astromesh.orchestration.fitting import best_fit
from astromesh.orchestration.graph_pattern import NOTES, GraphPattern, unbounded_engine_of
from astromesh.types import CompletionRequest, CompletionResult, JsonObject, Message, ToolCall, ToolResult

#: delegations of one round; a model that asks for more is told so
MOST_TASKS = 32
_TOO_MANY = f"At most {MOST_TASKS} tasks are delegated at a time; this one was not."
_CUT = "{} further tasks were not delegated: at most {} are at a time."


class Supervisor:
    """Decomposes, delegates to worker agents, collects."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")

        workers: tuple[str, ...] = Field(min_length=1, description="Names of the agents that do the work.")
        max_parallel: int = Field(4, ge=1, description="Workers that run at the same time.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> SupervisorPattern:
        """Raises: ConfigError: nothing here can run agents."""
        if deps.run_agent is None:
            raise ConfigError("The pattern supervisor needs a runtime that runs its workers.")
        workers = {name: deps.agents.get(name, "") for name in dict.fromkeys(options.workers)}
        return SupervisorPattern(workers, options.max_parallel, deps.run_agent)


class SupervisorPattern(GraphPattern):
    """A `Pattern` whose tools are its workers, beside those of the agent.

    Args:
        workers: description by name.
        max_parallel: of them that run at the same time.
        run_agent: runs one.
    """

    def __init__(self, workers: Mapping[str, str], max_parallel: int, run_agent: RunAgent) -> None:
        make = partial(supervisor_graph, workers, max_parallel)
        super().__init__(lambda iterations: unbounded_engine_of(make(iterations)), lambda task: Delegations())
        self._workers, self._run_agent = workers, run_agent

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        terms = Terms(max_iterations=task.max_iterations)
        workers = [WorkerTool(n, about, self._run_agent, terms) for n, about in self._workers.items()]
        return await super().run(task, model, JoinedTools(ToolBox(workers, timeout=None), tools), scope)


def supervisor_graph(workers: Mapping[str, str], max_parallel: int, max_iterations: int) -> PromptGraph:
    """The graph of the module's docstring.

    Args:
        workers: description by name.
        max_parallel: workers that run at the same time.
        max_iterations: times that the supervisor may try to answer.
    """
    critical = {NodeFlag.CRITICAL}
    graph = PromptGraph("supervisor")
    graph.add_node(Decompose(workers))
    graph.add_node(Delegate("delegate", workers, max_parallel))
    graph.add_node(SupervisorAnswer(workers, max_iterations, flags=critical))
    graph.set_entry("decompose").always("decompose", "delegate").always("delegate", "answer")
    return graph.on_tool_call("answer", "delegate").on_output("answer", "delegate", "again", True)


@dataclass(slots=True)
class Delegations:
    """What was delegated in a run, and how often the supervisor was asked for the answer.

    Args:
        wanted: what the model wrote down to be delegated next.
        in_words: the model delegates by writing.
    """

    made: list[tuple[str, bool]] = field(default_factory=list)
    asked: int = 0
    calls: int = 0
    wanted: list[Assignment] = field(default_factory=list)
    in_words: bool = False

    def metadata(self) -> JsonObject:
        return {"delegations": [{"agent": agent, "ok": ok} for agent, ok in self.made]}


# -- decompose ---------------------------------------------------------------------------------------------


class Decompose(BaseNode):
    """Asks for delegations: tool calls, or JSON, which is noted.

    Args:
        workers: description by name.
    """

    own = ("workers",)

    def __init__(self, workers: Mapping[str, str]) -> None:
        super().__init__("decompose", flags={NodeFlag.CRITICAL})
        self.workers = workers
        self.prompt = PromptNode(
            "assign",
            role="planner",
            instructions=_DECOMPOSE,
            model_override="planner",
            inject_tools=True,
            tool_loop=False,
            routing="edges_only",
        )

    def children(self) -> Iterable[BaseNode]:
        return (self.prompt,)

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        own = apart(state, state.messages)
        result = await config.run(self.prompt, own)
        if result.error:
            return NodeResult(self.name, error=result.error, exception=result.exception)
        if result.tool_calls:
            asked_for = own.messages[len(state.messages) :]
            return NodeResult(self.name, is_answer=False, messages_added=asked_for)
        notes: Delegations = config[NOTES]
        found = assignments_in(str(result.raw_output), self.workers)
        notes.in_words = found is not None
        if found is None:  # a text that delegates nothing: the whole task goes to whom it fits best
            found = [Assignment(best_fit(state.question, self.workers), state.question)]
        notes.wanted = found
        return NodeResult(self.name, {"tasks": len(found)}, is_answer=False)


_DECOMPOSE = (
    "You lead workers; each is one of your tools that takes a `task`. Do not answer yet: break the question "
    "into tasks, each for the worker it fits and with everything that worker needs to know. Call the workers "
    "of all tasks that are independent at once. If you cannot call tools, answer with one JSON object: "
    '{"delegate": [{"worker": "NAME", "task": "TASK", "after": [NUMBERS OF TASKS WHOSE RESULTS IT NEEDS]}]}. '
    'If nobody is needed, answer {"delegate": []}.'
)


# -- delegate ----------------------------------------------------------------------------------------------


class Delegate(BaseNode):
    """Carries out what was asked for: the calls of the last message, or the assignments that came as text.

    The results stand in the conversation as those of tool calls.

    Args:
        workers: description by name.
        max_parallel: calls that run at the same time.
    """

    own = ("workers", "max_parallel")

    def __init__(self, name: str, workers: Mapping[str, str], max_parallel: int) -> None:
        super().__init__(name, inject_tools=True)
        self.workers, self.max_parallel = workers, max_parallel

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        pending = state.messages[-1].tool_calls if state.messages[-1].role == "assistant" else ()
        if pending:
            results = await self._call(pending, state, config)
            return NodeResult(self.name, is_answer=False, messages_added=[_heard(r) for r in results])
        notes: Delegations = config[NOTES]
        wanted, notes.wanted = notes.wanted, []
        calls, results = await self._assign(wanted[:MOST_TASKS], state, config)
        if cut := len(wanted) - len(calls):
            told = f"{results[-1].content}\n\n{_CUT.format(cut, MOST_TASKS)}"
            results[-1] = replace(results[-1], content=told)
        said = [Message("assistant", "", tuple(calls))] if calls else []
        return NodeResult(self.name, is_answer=False, messages_added=[*said, *map(_heard, results)])

    async def _assign(
        self, assignments: Sequence[Assignment], state: GraphState, config: NodeConfig
    ) -> tuple[list[ToolCall], list[ToolResult]]:
        calls: dict[int, ToolCall] = {}
        results: dict[int, ToolResult] = {}
        for wave in waves(assignments):
            for i in wave:
                needed = [results[n - 1].content for n in assignments[i].after]
                calls[i] = _call(assignments[i], needed, config[NOTES])
            done = await self._call([calls[i] for i in wave], state, config)
            results.update(zip(wave, done, strict=True))
        places = range(len(assignments))
        return [calls[i] for i in places], [results[i] for i in places]

    async def _call(
        self, calls: Sequence[ToolCall], state: GraphState, config: NodeConfig
    ) -> list[ToolResult]:
        free = asyncio.Semaphore(self.max_parallel)

        async def one(call: ToolCall) -> ToolResult:
            async with free:
                return (await config.call_tools((call,), state))[0]

        results = await together([one(call) for call in calls[:MOST_TASKS]])
        notes: Delegations = config[NOTES]
        notes.made += [(result.name, result.ok) for result in results if result.name in self.workers]
        refused = (ToolResult(c.id, c.name, _TOO_MANY, False, "too_many_calls") for c in calls[MOST_TASKS:])
        return [*results, *refused]


def _call(assignment: Assignment, needed: Sequence[str], notes: Delegations) -> ToolCall:
    notes.calls += 1
    known = "\n\n".join(needed)
    task = f"{assignment.task}\n\n## What is known\n{known}" if known else assignment.task
    return ToolCall(f"delegate_{notes.calls}", assignment.worker, orjson.dumps({"task": task}).decode())


def _heard(result: ToolResult) -> Message:
    return Message("tool", result.content, tool_call_id=result.call_id, name=result.name)


# -- answer ------------------------------------------------------------------------------------------------


class SupervisorAnswer(SynthesizeNode):
    """Writes the answer from what the workers found, or asks for more; so often and no more.

    What it asks for with its last call is not done: nobody would read what comes of it.

    Args:
        workers: description by name.
        max_rounds: times that it is asked.
    """

    own_voice = True
    own = ("workers", "max_rounds")

    def __init__(self, workers: Mapping[str, str], max_rounds: int, **keywords: Any) -> None:
        super().__init__("answer", inject_tools=True, tool_loop=False, routing="edges_only", **keywords)
        self.workers, self.max_rounds = workers, max_rounds

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        notes: Delegations = config[NOTES]
        notes.asked += 1
        result = await super().execute(state, config)
        said = str(result.raw_output or "")
        again = not result.tool_calls and self._delegates(said)
        if not (result.tool_calls or again):
            return result
        if notes.asked >= self.max_rounds:
            if result.tool_calls and said:
                state.messages.append(Message("assistant", said))
            raise IterationsExhausted(f"The supervisor has used up its {self.max_rounds} rounds.")
        if result.tool_calls:
            return result
        notes.wanted = assignments_in(said, self.workers) or []
        return NodeResult(self.name, {"again": True}, is_answer=False)

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        """Who delegates by writing may do so again; the words are shown once they are no delegation."""
        notes: Delegations = config[NOTES]
        if not notes.in_words:
            return super()._ask(request, config)
        system, *others = request.messages
        told = replace(system, content=f"{system.content}\n\n{_AGAIN}")
        return config.complete(
            replace(request, messages=(told, *others)),
            role=self._voice,
            shown=lambda result: "" if self._delegates(result.content) else result.content,
        )

    def _delegates(self, text: str) -> bool:
        """Whether a text is no answer: it delegates, or is nothing but JSON that was to delegate."""
        alone = whole_object(text)
        if alone is not None and "delegate" in alone:
            return True
        asks = any(isinstance(found, dict) and "delegate" in found for found in extract_values(text))
        return asks and bool(assignments_in(text, self.workers))


_AGAIN = (
    "If something that you need is still missing, answer with nothing but the JSON object that delegates "
    'further tasks: {"delegate": [{"worker": "NAME", "task": "TASK"}]}. Otherwise write the answer.'
)
