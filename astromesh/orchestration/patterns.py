"""What patterns are made of, and the patterns of one graph: react, graph, pipeline and autonomous.

`GraphPattern` runs a graph inside a run of the pipeline, and reports how it ended. `ToolLoop` is a model with
its tools, bounded in model calls. `IsolatedNode` runs a prompt on its own conversation and returns only the
result, so that no worker reads the messages of another. `plan_and_execute`, `parallel_fan_out`, `supervisor`,
`swarm` and `reasoning` have modules of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, Unpack

from msgspec import structs
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import InitErrorDetails

from astromesh.errors import (
    AstromeshError,
    ConfigError,
    GraphError,
    GraphStopped,
    GuardrailBlocked,
    InvalidGraph,
    IterationsExhausted,
    NodeFailed,
    OutputRefused,
    ToolError,
)
from astromesh.graph.base import BaseNode, NodeKeywords
from astromesh.graph.engine import PromptGraphEngine
from astromesh.graph.flags import NodeFlag
from astromesh.graph.graph import PromptGraph
from astromesh.graph.node_config import Graph, Node, NodeConfig
from astromesh.graph.node_record import NodeRecorder
from astromesh.graph.nodes.human import human_handler
from astromesh.graph.nodes.prompt import PromptNode
from astromesh.graph.nodes.routing import DONE, AutonomousNode, PoolStep
from astromesh.graph.prebuilt import react
from astromesh.graph.problems import unknown_roles
from astromesh.graph.records import LIMIT_STOPS, ExecutionReport, GraphResult, NodeResult
from astromesh.graph.run import Run
from astromesh.graph.scope import Scope
from astromesh.graph.state import GraphState
from astromesh.orchestration.base import Outcome, PatternTask
from astromesh.plugins import Deps
from astromesh.providers.base import ModelPort
from astromesh.tools.base import RunAgent, ToolPort
from astromesh.types import STANDARD_ROLES, CompletionRequest, CompletionResult, JsonObject, Message

#: The answer if a limit ends the run before the model has produced text.
UNFINISHED = "I could not finish this within the limits that are set for me."
#: The answer if a person denies or does not decide in time. It is never the text to decide on.
NOT_APPROVED = {
    "human_denied": "A person has not approved this, so I stopped here.",
    "human_timeout": "Nobody has approved this in time, so I stopped here.",
}
#: The error of an answer that a guard of the graph refused. The reason stays internal.
REFUSED = "A guard of this agent refused the answer."
#: The role in `spec.model.roles` for nodes with the flag LIGHTWEIGHT. The main model replaces a missing role.
LIGHT = "lightweight"
#: The node executions of a graph whose tool loops have limits of their own.
_UNBOUNDED = 100_000
#: Nodes read the notes of a run as `config[NOTES]`. Variables of the request cannot replace them.
NOTES = "_notes"
#: The names of stages, branches and nodes, which are parts of paths.
NAME_PATTERN = r"^[^/\s][^/]{0,63}$"


class PatternOptions(BaseModel):
    """The base of the YAML options of patterns."""

    model_config = ConfigDict(extra="forbid")


class Notes(Protocol):
    """The notes of the nodes of a pattern about one run."""

    def metadata(self) -> JsonObject:
        """Returns the keys to add to the metadata of the run."""


class GraphPattern:
    """A `Pattern` that runs a graph.

    Args:
        graph: The graph, whose node executions the run's iterations limit. Or a function that makes the graph
            for a number of iterations; its tool loops limit themselves. It is called once for each number.
        notes: Makes the notes of a run, which its nodes read as `config[NOTES]`. With notes, the iterations
            of the outcome are model calls; without, node executions. A durable run records what the nodes of
            the graph itself change in them, and no other node may change them.
        node_model: As `Deps.node_model`.

    Raises:
        InvalidGraph: The graph cannot run.
    """

    def __init__(
        self,
        graph: PromptGraph | Callable[[int], PromptGraph],
        notes: Callable[[PatternTask], Notes] | None = None,
        node_model: Callable[[ModelPort], ModelPort | None] | None = None,
    ) -> None:
        self._graph, self._notes, self._node_model = graph, notes, node_model
        self._engines: dict[int, PromptGraphEngine] = {}
        if isinstance(graph, PromptGraph):
            self._engine(1).plan  # noqa: B018 (compiles it: a graph that cannot run is found at load)

    async def run(self, task: PatternTask, model: ModelPort, tools: ToolPort, scope: Scope) -> Outcome:
        """Runs the graph once.

        Raises:
            AstromeshError: The cause of the failure, e.g. AllProvidersFailed.
        """
        notes = self._notes(task) if self._notes else None
        steps = scope.steps[0]
        engine = self._engines.get(task.max_iterations) or self._engine(task.max_iterations)
        run = engine.start(
            task.messages,
            scope,
            model=model,
            tools=tools,
            context=task.context,
            config={NOTES: notes} if notes else None,
        )
        run.tells_state = scope.tells_state
        if scope.journal is not None:
            if scope.journal.is_durable:
                run.settings = replace(run.settings, human_handler=human_handler(scope))
            run.recorder = NodeRecorder(scope.journal, notes)
        result = await run.execute()
        if scope.keeps_graph_result:
            scope.graph_result = result
        report, text = result.report, result.output
        if run.settings.human_handler is not None and report.stop_reason in NOT_APPROVED:
            text = NOT_APPROVED[report.stop_reason]
        elif not isinstance(text, str):
            text = _answer_text(result, run, len(task.messages))
        if notes is None:
            return Outcome(text, report.stop_reason, report.iterations, report.usage, report.error)
        calls = scope.steps[0] - steps
        return Outcome(text, report.stop_reason, calls, report.usage, report.error, notes.metadata())

    def to_mermaid(self, iterations: int) -> str:
        """Returns the graph as a Mermaid diagram."""
        return self._engine(iterations).graph.to_mermaid()

    def _engine(self, iterations: int) -> PromptGraphEngine:
        if iterations not in self._engines:
            if isinstance(self._graph, PromptGraph):
                graph, most = self._graph, iterations
            else:
                graph, most = self._graph(iterations), _UNBOUNDED
            engine = self._engines[iterations] = PromptGraphEngine(
                graph, lightweight_model=LIGHT, max_iterations=most, max_node_iterations=most
            )
            if self._node_model is not None:
                engine.replace_node_models(self._node_model)
        return self._engines[iterations]


def agents_of(deps: Deps, names: Iterable[str], pattern: str) -> tuple[RunAgent, dict[str, str]]:
    """Returns the function that runs agents, and the descriptions of these agents by name.

    Raises:
        ConfigError: There is no runtime that runs agents.
    """
    if deps.run_agent is None:
        raise ConfigError(f"The pattern {pattern} needs a runtime that runs its agents.")
    return deps.run_agent, {name: deps.agents.get(name, "") for name in dict.fromkeys(names)}


def _answer_text(result: GraphResult, run: Run, message_count: int) -> str:
    """Returns the answer of a run whose output is data or missing.

    Args:
        message_count: The number of messages at the start of the run. Only later ones can be an answer.

    Raises:
        AstromeshError: The run failed.
    """
    if result.output is not None:
        return result.text
    _raise_failure(result.report)
    if run.plan.guarded:
        return UNFINISHED  # the last text may be one that a guard refused
    text = _last_text(result, message_count)
    # after a tool that ended the run there may be no text
    return text if run.shared.stop_reason == "completed" else text or UNFINISHED


def _last_text(result: GraphResult, message_count: int) -> str:
    """Returns the newest text of the model in this run, never the result of a tool."""
    texts = (
        m.content for m in reversed(result.messages[message_count:]) if m.role == "assistant" and m.content
    )
    return next(texts, "")


def _raise_failure(report: ExecutionReport) -> None:
    """Raises the error of a failed run.

    An error of astromesh keeps its code and status: no model answered, a fault of a file. What else a node
    raises, its tools included, is `node_failed`.
    """
    if not report.error or report.stop_reason in LIMIT_STOPS:
        return
    failure = report.failure
    if failure is None:
        raise GraphError(report.error)
    cause = failure.cause
    if isinstance(cause, OutputRefused):
        raise GuardrailBlocked(cause.guard, REFUSED) from cause
    if isinstance(cause, AstromeshError) and not isinstance(cause, GraphError | ToolError):
        cause.node = failure.node
        raise cause
    error = NodeFailed(failure.node, failure.to_json()["message"], cause)
    error.node = failure.node
    raise error from cause


# -- nodes that run a model on a conversation of its own --------------------------------------------------


#: Makes the conversation of a worker.
Brief = Callable[[GraphState, NodeConfig], Sequence[Message]]


class ToolLoop(PromptNode):
    """A model that calls tools until it answers, within a number of calls.

    Args:
        max_rounds: The limit of model calls. After it the node fails with IterationsExhausted.
        role: See PromptNode.
        answers: Whether its text may be the answer of the run.
        keywords: See `NodeKeywords`.
    """

    decides_streaming = True

    def __init__(
        self,
        name: str,
        *,
        max_rounds: int,
        role: str = "",
        answers: bool = True,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        keywords.setdefault("inject_tools", True)
        keywords.setdefault("routing", "edges_only")  # its text is for readers and leaves unchanged
        super().__init__(name, role=role, **keywords)
        self.max_rounds, self.answers = max_rounds, answers

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        error = rounds_error(self.name, state, self.max_rounds)
        if error is None:
            return await super().execute(state, config)
        return NodeResult(self.name, error=str(error), exception=error)

    def _ask(self, request: CompletionRequest, config: NodeConfig) -> Awaitable[CompletionResult]:
        return super()._ask(request if self.answers else structs.replace(request, answers=False), config)


def rounds_error(name: str, state: GraphState, max_rounds: int) -> IterationsExhausted | None:
    """Returns the error of a tool loop that has made all its model calls, or None if it may make another.

    Args:
        name: The name of the node.
        max_rounds: The limit of model calls.
    """
    if sum(message.role == "assistant" for message in state.loop) < max_rounds:
        return None
    return IterationsExhausted(f"{name!r} has used up its {max_rounds} model calls.")


class IsolatedNode(BaseNode):
    """Runs a prompt on its own conversation. The output is that of the prompt.

    Args:
        prompt: The node to run.
        brief: Makes the conversation. The default is that of the run.
        collected: Whether an exhausted limit is a failure of this node alone. Otherwise it ends the run.
        keywords: See `NodeKeywords`.
    """

    decides_streaming = True

    def __init__(
        self,
        name: str,
        prompt: PromptNode,
        brief: Brief | None = None,
        *,
        collected: bool = False,
        **keywords: Unpack[NodeKeywords],
    ) -> None:
        super().__init__(name, **keywords)
        self.prompt, self.brief, self.collected = prompt, brief, collected

    def children(self) -> Iterable[BaseNode]:
        return (self.prompt,)

    def streams_child(self, child: Node | Graph) -> bool:
        return True

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        messages = self.brief(state, config) if self.brief else state.messages
        own = isolated_state(state, messages)
        try:
            result = await config.run(self.prompt, own)
        except GraphStopped:
            _keep_last_text(state, own.messages[len(messages) :])
            raise
        if result.error:
            _keep_last_text(state, own.messages[len(messages) :])
            if isinstance(result.exception, IterationsExhausted) and not self.collected:
                raise result.exception
        return NodeResult(
            self.name, result.output, result.raw_output, error=result.error, exception=result.exception
        )


def isolated_state(state: GraphState, messages: Sequence[Message]) -> GraphState:
    """Returns the state with other messages, and without plan, observations and reflections."""
    own = state.view(list(messages), dict(state.context))
    own.plan, own.observations, own.reflections = [], [], []
    return own


def _keep_last_text(state: GraphState, messages: Sequence[Message]) -> None:
    """Adds the last text of a worker that did not finish, for a run that a limit ends here."""
    text = next((m.content for m in reversed(messages) if m.role == "assistant" and m.content), "")
    if text:
        state.messages.append(Message("assistant", text))


# -- conversations -----------------------------------------------------------------------------------------
def append_sections(messages: Sequence[Message], **sections: Any) -> tuple[Message, ...]:
    """Returns a conversation with titled sections after its last question. Empty ones are left out.

    Args:
        messages: System, history, the user's question.
        sections: Texts by title.
    """
    place = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    if place < 0:
        return tuple(messages)
    question = messages[place]
    parts = [question.content, *(f"## {title}\n{text}" for title, text in sections.items() if text)]
    return (*messages[:place], Message("user", "\n\n".join(parts), attachments=question.attachments))


# -- the best worker for a task ----------------------------------------------------------------------------

_WORD = re.compile(r"[^\W_]{3,}")
#: Words that say nothing about the purpose of a worker.
_STOP_WORDS = frozenset(
    _WORD.findall(
        "about agent all and any answer answers anything are ask asks can could did does for from get has "
        "have her him his how its may more not our out question questions she should that the their them "
        "they this use user was were what when where which who why will with would you your"
    )
)


def best_fit(task: str, candidates: Mapping[str, str]) -> str:
    """Returns the candidate whose name and description share most words with a task. Ties go to the first.

    Args:
        task: What is to be done.
        candidates: The descriptions by name, at least one.
    """
    stems = _stems(task)
    return max(candidates, key=lambda name: len(stems & _stems(f"{name} {candidates[name]}")))


def _stems(text: str) -> set[str]:
    """Returns the beginnings of words, so that `plans` equals `plan`, and `billed` equals `billing`."""
    return {word.rstrip("s")[:4] for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS}


# -- autonomous: the model builds the path from a pool of nodes --------------------------------------------

_AUTONOMOUS = "autonomous"


class Explorer(AutonomousNode):
    """An AutonomousNode for models that cannot choose.

    After two unusable choices in a row it picks the node that fits the question best, among those that have
    not run. If all have run, it ends.
    """

    async def _choose(self, state: GraphState, config: NodeConfig, history: list[PoolStep]) -> str:
        choice = await super()._choose(state, config, history)
        if choice in self.pool or choice == DONE or not history or history[-1].node:
            return choice
        ran = {step.node for step in history}
        left = [node for node in self.pool.values() if node.name not in ran]
        about = {node.name: node.description or node.instructions for node in left}
        return best_fit(state.question, about) if about else DONE


def autonomous_graph(pool: Sequence[Mapping[str, Any]], max_steps: int) -> PromptGraph:
    """Returns a graph of the nodes that a pool describes.

    Args:
        pool: Nodes as `graphs/*.graph.yaml` writes them.
        max_steps: How often the model may choose a node.

    Raises:
        InvalidGraph: A node is invalid, or two have one name.
    """
    nodes = PromptGraph.from_config({"name": "pool", "nodes": list(pool)}).nodes
    try:
        explorer = Explorer(_AUTONOMOUS, nodes.values(), max_steps, is_terminal=True)
    except ValueError as error:
        raise InvalidGraph([str(error)]) from error
    return PromptGraph(_AUTONOMOUS, nodes=[explorer])


# -- pipeline: stages one after another --------------------------------------------------------------------


class Stage(PatternOptions):
    name: str = Field(pattern=NAME_PATTERN, description="The name in events and traces.")
    prompt: str = Field(min_length=1, description="What this stage does.")
    role: str = Field("", description="A role of spec.model.roles. The default is the main model.")


@dataclass(slots=True)
class StageNotes:
    """The finished stages, and the output of the last one."""

    done: list[str] = field(default_factory=list)
    output: str = ""

    def metadata(self) -> JsonObject:
        return {"stages": list(self.done)}


class StageNode(IsolatedNode):
    """Runs a stage on the question and the output of the stage before."""

    async def execute(self, state: GraphState, config: NodeConfig) -> NodeResult:
        result = await super().execute(state, config)
        if not result.error:
            notes: StageNotes = config[NOTES]
            notes.done.append(self.name)
            notes.output = str(result.output or "")
        return result


def stages_graph(stages: Sequence[Stage], max_iterations: int) -> PromptGraph:
    """Returns the graph of the stages, in order. The last one answers. A stage that fails ends the run.

    Args:
        stages: At least one, with different names.
        max_iterations: The model calls of one stage.
    """
    last = stages[-1]
    nodes = [_stage_node(stage, "" if stage is last else "worker", max_iterations) for stage in stages]
    return PromptGraph("pipeline", nodes=nodes).sequential(*(node.name for node in nodes))


def _stage_node(stage: Stage, role: str, max_iterations: int) -> StageNode:
    loop = ToolLoop(
        "act",
        role=role,
        answers=not role,
        max_rounds=max_iterations,
        instructions=stage.prompt,
        model_override=stage.role or None,
    )
    return StageNode(stage.name, loop, _stage_messages, flags={NodeFlag.CRITICAL}, is_terminal=not role)


def _stage_messages(state: GraphState, config: NodeConfig) -> Sequence[Message]:
    notes: StageNotes = config[NOTES]
    before = notes.done[-1] if notes.done else ""
    return append_sections(state.messages, **{f"Result of {before}": notes.output})


# -- the plugins -------------------------------------------------------------------------------------------


class React:
    """Reasoning and acting: the model calls tools until it answers (document 001, step 7)."""

    class Options(PatternOptions):
        pass

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(react())


class OwnGraph:
    """A graph of `config/graphs/`, or one that was passed to the runtime in Python."""

    class Options(PatternOptions):
        graph: str = Field(min_length=1, description="The name of a graph: graphs/NAME.graph.yaml.")

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Opens the pattern.

        Raises:
            ConfigError, InvalidGraph: The graph does not exist or cannot run.
        """
        source = deps.graphs.get(options.graph)
        if source is None:
            known = ", ".join(sorted(deps.graphs)) or "none"
            raise ConfigError(f"There is no graph {options.graph!r}. Known: {known}.")
        graph = source if isinstance(source, PromptGraph) else PromptGraph.from_config(source)
        return GraphPattern(_with_known_roles(graph, deps), node_model=deps.node_model)


class Pipeline:
    """Stages one after another. The output of each is the input of the next."""

    class Options(PatternOptions):
        stages: tuple[Stage, ...] = Field(min_length=1, description="The stages, in order.")

        @field_validator("stages")
        @classmethod
        def _check_names(cls, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
            twice = [name for name, times in Counter(s.name for s in stages).items() if times > 1]
            if twice:
                raise ValueError(f"two stages have the name {twice[0]!r}")
            return stages

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        return GraphPattern(partial(stages_graph, options.stages), lambda task: StageNotes())


class Autonomous:
    """The model chooses the next node of a pool, step by step."""

    class Options(PatternOptions):
        pool: tuple[dict[str, Any], ...] = Field(
            min_length=1, description="The nodes to choose from, as graphs/*.graph.yaml writes nodes."
        )
        max_steps: int = Field(10, ge=1, description="How often the model may choose a node.")

        @field_validator("pool")
        @classmethod
        def _check_pool(cls, pool: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
            try:
                autonomous_graph(pool, 1)
            except InvalidGraph as error:
                faults = [_pool_error(problem) for problem in error.problems]
                raise ValidationError.from_exception_data("pool", faults) from error
            return pool

    @classmethod
    async def open(cls, options: Options, deps: Deps) -> GraphPattern:
        """Opens the pattern. Raises InvalidGraph if the pool cannot run."""
        graph = autonomous_graph(options.pool, options.max_steps)
        return GraphPattern(_with_known_roles(graph, deps))


def _with_known_roles(graph: PromptGraph, deps: Deps) -> PromptGraph:
    """Returns the graph. Raises InvalidGraph if a node names a role that the agent does not have."""
    if unknown := unknown_roles(graph, {*STANDARD_ROLES, *deps.roles}):
        raise InvalidGraph(unknown)
    return graph


def _pool_error(problem: str) -> InitErrorDetails:
    """Returns a problem with its path, `nodes.1.guards: …`, as an error of pydantic, reported at its line."""
    location, _, message = problem.partition(": ")
    nodes, *steps = location.split(".")
    if nodes != "nodes":
        steps, message = [], problem
    path = tuple(int(step) if step.isdecimal() else step for step in steps)
    return InitErrorDetails(type="value_error", loc=path, input=None, ctx={"error": ValueError(message)})
