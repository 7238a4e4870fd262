"""The stages of the pipeline, one function per step of document 001. Each emits its event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from dataclasses import replace
from functools import partial
from time import perf_counter

from astromesh.abc.clock import ms_since
from astromesh.abc.durable import Change
from astromesh.abc.run import Outcome, PatternTask
from astromesh.abc.stores import NOT_DONE
from astromesh.abc.tool import ToolPort
from astromesh.core.checked_data import checked_data
from astromesh.core.checked_errors import check_error
from astromesh.core.tool_layers import identity_of
from astromesh.errors import GuardrailBlocked, UpstreamError
from astromesh.node.calls import ASSISTANT
from astromesh.node.toolbox import JoinedTools
from astromesh.runtime import budgets, failpoints
from astromesh.runtime.agent import Agent
from astromesh.runtime.episodes import episode
from astromesh.runtime.recorded import (
    admitted_of,
    admitted_to_json,
    memory_of,
    memory_to_json,
    request_to_json,
)
from astromesh.runtime.records import (
    AdmittedQuery,
    EquippedQuery,
    PromptedQuery,
    RecalledQuery,
    ReleasedAnswer,
    RunAnswer,
    RunRequest,
)  # fmt: skip
from astromesh.runtime.run import Run
from astromesh.runtime.structured_answers import structured
from astromesh.telemetry.stream import DELTA
from astromesh.types import JsonObject, MemoryContext, Message, Turn

_USER = frozenset({"user"})
_ANY_ROLE = frozenset({"system", "user", "assistant", "tool"})


def admit(agent: Agent, request: RunRequest, run: Run) -> AdmittedQuery:
    """Step 3: the input rules in declared order; pass, redact or block.

    Raises:
        GuardrailBlocked: with the rule's type and the configured message.
    """
    if run.journal is None:
        return _admit(agent, request, run)
    made = run.journal.once(
        "input", lambda: _admit(agent, request, run), admitted_to_json, partial(admitted_of, request)
    )
    run.admitted = made.query
    if not run.journal.place:  # S10: from here on nobody needs the raw query
        run.journal.book.writer.change(Change(request=request_to_json(request, made.query)))
    return made


def _admit(agent: Agent, request: RunRequest, run: Run) -> AdmittedQuery:
    started = perf_counter()
    try:
        checked = agent.guardrails.check_input(request.query)
        preface = _admit_messages(agent, request.preface)
        history = None if request.history is None else _admit_history(agent, request)
    except GuardrailBlocked as blocked:
        for action in blocked.actions:
            run.stream.emit("guardrail.action", **action)
        raise
    _report(run, "input", checked.actions, started, checked.text)
    run.admitted = checked.text
    return AdmittedQuery(request, checked.text, checked.actions, history, preface)


async def recall(agent: Agent, admitted: AdmittedQuery, run: Run) -> RecalledQuery:
    """Step 4: history, knowledge and past events of this session."""
    started = perf_counter()
    if run.journal is None:
        memory = await _remembered(agent, admitted, run)
    else:
        memory = await run.journal.value(
            "memory", lambda: _remembered(agent, admitted, run), memory_to_json, memory_of
        )
    run.owner = memory.owner or run.owner
    run.scope.note_untrusted(_unvouched(memory))
    run.stream.emit(
        "memory.loaded",
        turns=len(memory.conversation_history),
        semantic=len(memory.semantic_results),
        episodic=len(memory.episodic_events),
        degraded=list(memory.degraded),
        duration_ms=ms_since(started),
    )
    return RecalledQuery(admitted, memory)


def _unvouched(memory: MemoryContext) -> Iterator[str]:
    """What was recalled that holds words of others: passages, and what tools have answered."""
    if memory.semantic_results:
        yield "semantic memory"
    if any(event.get("event") == "tool_call" for event in memory.episodic_events):
        yield "episodic memory"


def _remembered(agent: Agent, admitted: AdmittedQuery, run: Run) -> Awaitable[MemoryContext]:
    return agent.memory.build_context(
        agent.name,
        run.key.session_id,
        admitted.query,
        tenant=run.key.tenant,
        owner=run.owner,
        any_owner=run.any_owner,
    )


def render(agent: Agent, recalled: RecalledQuery, run: Run) -> PromptedQuery:
    """Step 5: the system prompt, then the history, then the query."""
    started = perf_counter()
    admitted, memory = recalled.admitted, recalled.memory
    request = admitted.request
    system = agent.prompt.render(memory, request.context, run.asked_at or run.scope.clock.now())
    if request.terms.instructions:
        system = f"{system}\n\n{request.terms.instructions}".strip()
    history = memory.conversation_history if admitted.history is None else admitted.history
    while history and history[0].role == "system":  # a summary; some chat templates take one system message
        system, history = f"{system}\n\n{history[0].content}".strip(), history[1:]
    messages = (
        Message("system", system),
        *history,
        *admitted.preface,
        Message("user", admitted.query, images=request.images),
    )
    run.stream.emit("prompt.rendered", characters=len(system), duration_ms=ms_since(started))
    return PromptedQuery(recalled, messages)


async def equip(agent: Agent, prompted: PromptedQuery, run: Run) -> EquippedQuery:
    """Step 6: the schemas of the permitted tools."""
    if agent.tools.live:
        await _identified(agent, run)
        await agent.tools.prepare()
    tools = _tools(agent, prompted.recalled.admitted.request).specs()
    run.stream.emit("tools.listed", count=len(tools))
    return EquippedQuery(prompted, tools)


async def _identified(agent: Agent, run: Run) -> None:
    """A run that was taken up again waits for its caller's token where nobody else is shown the tools."""
    caller = run.scope.caller
    if run.journal is None or caller is None or not caller.lacks_token:
        return
    if block := agent.tools.for_callers_only():
        await run.journal.identity(identity_of(block, caller.user_id))


async def orchestrate(agent: Agent, equipped: EquippedQuery, run: Run) -> tuple[EquippedQuery, Outcome]:
    """Steps 7 to 9: the pattern calls the router (8) and the tools (9) until it has an answer.

    What fails on the way says no more than an answer may.
    """
    request = equipped.prompted.recalled.admitted.request
    iterations = agent.iterations_within(request.terms.max_iterations)
    task = PatternTask(equipped.prompted.messages, equipped.tools, iterations, request.context)
    tools = budgets.tools_of(_tools(agent, request), run.scope)
    try:
        outcome = await agent.pattern.run(task, run.model, tools, run.scope)
        budgets.answered(run.scope, outcome.stop_reason)
        if agent.output_schema is not None:
            outcome = await structured(agent.output_schema, outcome, task.messages, run)
    except UpstreamError as error:
        check_error(agent.guardrails, error)
        raise
    return equipped, outcome


def release(agent: Agent, answered: tuple[EquippedQuery, Outcome], run: Run) -> ReleasedAnswer:
    """Step 10: the output rules in declared order; a blocked answer becomes the safe response."""
    started = perf_counter()
    equipped, outcome = answered
    admitted = equipped.prompted.recalled.admitted
    usage, last = run.scope.ledger.usage, run.model.last
    streamed = run.events.last
    if streamed is not None and streamed[0] == outcome.text:
        checked = streamed[1]  # the rules have seen it on its way out
    else:
        checked = agent.guardrails.check_output(
            outcome.text,
            tokens_used=usage.total_tokens,
            output_tokens=last.usage.output_tokens if last else 0,
        )
        if run.stream.streaming and checked.text and checked.text != run.said:
            # text that no step has streamed is a step of its own
            step = run.scope.next_step() if run.events.streaming else run.scope.steps[0]
            run.stream.emit(DELTA, step=step, role=ASSISTANT, content=checked.text)
    _report(run, "output", checked.actions, started, checked.text)
    details: JsonObject = {
        "provider": last.provider if last else "",
        "model": last.model if last else "",
        "tokens_used": usage.total_tokens,
        "usage": usage.to_json(),
        "tools_called": list(run.scope.tools_called),
        "pattern": agent.pattern_name,
        "iterations": outcome.iterations,
        "stop_reason": outcome.stop_reason,
        "finish_reason": last.finish_reason if last else "stop",
        "attempts": list(run.model.attempts),
        **_checked_metadata(agent, outcome, checked.text),
    }
    return ReleasedAnswer(admitted, checked.text, (*admitted.actions, *checked.actions), details)


async def remember(agent: Agent, released: ReleasedAnswer, run: Run) -> None:
    """Step 11: both turns or none, in one transaction, and what happened as episodic events."""
    request = released.admitted.request
    if not request.persist:
        return
    started = perf_counter()
    if run.seat.look is not None:
        await run.seat.look()
    run.remembered = (
        True  # a cancel from here on does not take the turns back, so that none are written twice
    )
    try:
        await _kept(agent, released, run)
    except asyncio.CancelledError as error:
        run.remembered = NOT_DONE not in error.args
        raise
    run.stream.emit("memory.persisted", turns=2, duration_ms=ms_since(started))


async def _kept(agent: Agent, released: ReleasedAnswer, run: Run) -> None:
    if run.journal is None:
        await _keep(agent, released, run)
        return
    await run.journal.hold()
    failpoints.passing(failpoints.BEFORE_STEP_11)
    await run.journal.value("kept", lambda: _keep(agent, released, run), lambda _: {}, lambda _: None)
    failpoints.passing(failpoints.AFTER_STEP_11)


async def _keep(agent: Agent, released: ReleasedAnswer, run: Run) -> None:
    if agent.memory.keeps_nothing:
        return
    now = run.scope.clock.now()
    once, token = run.journal is not None, run.seat.token
    async with agent.memory.transaction(run.key, run.owner, once=once, token=token) as transaction:
        transaction.persist_turn(Turn("user", released.admitted.query, created_at=now, run_id=run.id))
        transaction.persist_turn(Turn("assistant", released.response, created_at=now, run_id=run.id))
        if agent.memory.episodic is not None:
            transaction.record(episode(agent.guardrails, released, run))


async def remember_partial(agent: Agent, request: RunRequest, run: Run) -> None:
    """What a cancelled run had said: both turns, the answer marked `partial`; nothing where there is none."""
    text = run.events.partial
    if not text or not request.persist or run.remembered:
        return
    now = run.scope.clock.now()
    once, token = run.journal is not None, run.seat.token
    async with agent.memory.transaction(run.key, run.owner, once=once, token=token) as transaction:
        transaction.persist_turn(Turn("user", run.admitted, created_at=now, run_id=run.id))
        transaction.persist_turn(Turn("assistant", text, created_at=now, run_id=run.id, status="partial"))


def respond(agent: Agent, released: ReleasedAnswer, run: Run) -> RunAnswer:
    """Step 12: the answer as every transport shows it."""
    metadata = {
        **released.details,
        "latency_ms": run.elapsed_ms(),
        "trace_id": run.trace_id,
        "guardrails": list(released.actions),
    }
    return RunAnswer(released.response, agent.name, run.key.session_id, run.id, metadata)


def _tools(agent: Agent, request: RunRequest) -> ToolPort:
    """The agent's tools, and those that an outer pattern offers beside them."""
    offered = request.terms.tools
    return agent.tools if offered is None else JoinedTools(offered, agent.tools)


def _admit_history(agent: Agent, request: RunRequest) -> tuple[Message, ...]:
    """A client's history is the client's own, all of it; an outer pattern's holds what agents have said."""
    roles = _ANY_ROLE if request.terms.history is None else _USER
    return _admit_messages(agent, request.history or (), roles)


def _admit_messages(
    agent: Agent, messages: tuple[Message, ...], roles: frozenset[str] = _USER
) -> tuple[Message, ...]:
    """What a client sends along with its query is user text as well: the same rules hold."""
    return tuple(
        replace(m, content=agent.guardrails.check_input(m.content).text)
        if m.role in roles and m.content
        else m
        for m in messages
    )


def _checked_metadata(agent: Agent, outcome: Outcome, response: str) -> JsonObject:
    """What a pattern adds to the metadata, each text of it under the output rules; the answer as released."""
    if not outcome.metadata or not agent.guardrails.output_rules:
        return outcome.metadata
    found: JsonObject = checked_data(agent.guardrails, outcome.metadata, {outcome.text: response})
    return found


def _report(run: Run, stage: str, actions: tuple[JsonObject, ...], started: float, text: str) -> None:
    """`text`: what the rules left; a trace holds it only where that is asked."""
    for action in actions:
        run.stream.emit("guardrail.action", **action)
    content = {} if run.captured is None else {"content": run.captured.text(text)}
    run.stream.emit(
        "guardrails.checked", stage=stage, actions=len(actions), duration_ms=ms_since(started), **content
    )
