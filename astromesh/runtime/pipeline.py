"""The twelve steps of a run, straight down the page, then each step (document 001).

Step 1, the arrival, is `api`. Step 2, `AgentRuntime.run`, calls `answer` in the wrappers of every run
(`runtime.wrappers`; `runtime.runner` has their order). Each step takes the record of the step before and
returns the next one, so that reading a later step early does not type-check. Each emits its event. There is
one path: a stream is a listener to the events of the run.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from time import perf_counter
from typing import Any

import orjson
from msgspec import UNSET
from msgspec.structs import replace

from astromesh.core.guardrails import (
    CheckedText,
    GuardrailsEngine,
    filter_data,
    filter_error,
)
from astromesh.core.memory import NO_CONTEXT
from astromesh.core.routing import outgrown, shortened_summary
from astromesh.durable import failpoints
from astromesh.durable.base import RunChange
from astromesh.durable.serialization import memory_of, memory_to_json
from astromesh.errors import (
    NOT_DONE,
    BudgetExhausted,
    ConfigError,
    EmptyAnswer,
    GuardrailBlocked,
    InvalidOutput,
    NodeFailed,
    Refused,
    UpstreamError,
)
from astromesh.graph.call_record import arguments_of
from astromesh.graph.calls import SelectedTools, call_model
from astromesh.graph.model_output import AnswerSchema, repair_message
from astromesh.graph.scope import ToolCallRecord
from astromesh.guardrails.base import RetrievedPassage
from astromesh.logs import get_logger
from astromesh.memory.base import Summary
from astromesh.orchestration.base import Outcome, PatternTask
from astromesh.runtime.agent import Agent, SystemPrompt
from astromesh.runtime.charges import ChargedTools, ended_by_budget
from astromesh.runtime.client_tools import client_tool_port
from astromesh.runtime.knowledge import Search, cited_passages, retrieved_passages
from astromesh.runtime.records import (
    AdmittedQuery,
    EquippedQuery,
    PromptedQuery,
    RecalledQuery,
    ReleasedAnswer,
    RunAnswer,
    RunRequest,
    admitted_of,
    admitted_to_json,
    request_to_json,
)
from astromesh.runtime.request_checks import CheckedRequest, check_parts, check_request
from astromesh.runtime.run import Run
from astromesh.telemetry.clock import TimeLimit
from astromesh.telemetry.events import ms_since
from astromesh.tools.base import ToolPort
from astromesh.tools.policies import identity_question
from astromesh.tools.toolbox import JoinedTools, NoTools, ToolBox
from astromesh.types import CompletionRequest, JsonObject, MemoryContext, Message, Turn

log = get_logger("astromesh.run")


async def answer(agent: Agent, request: RunRequest, run: Run) -> RunAnswer:
    """Executes one run of one agent, from the caller's query to the released answer."""
    admitted = admit(agent, request, run)  # 3  input guardrails
    recalled = await recall(agent, admitted, run)  # 4  memory context
    prompted = await render(agent, recalled, run)  # 5  prompt
    equipped = await equip(agent, prompted, run)  # 6  tool schemas
    result = await orchestrate(agent, equipped, run)  # 7-9 pattern, model router, tools
    released = await release(agent, result, run)  # 10 output guardrails
    await remember(agent, released, run)  # 11 persistence
    return respond(agent, released, run)  # 12 response


# -- the events of a run in episodic memory (document 001, step 11) ------------------------------------------
#
# They go into the prompts of later runs, so arguments and results are stored as the output rules leave them.

#: stored characters of arguments and of a result
_MAX_STORED = 500
#: characters of a result that the rules see: more than is stored, so that its end is not half of a match
_MAX_CHECKED = 10_000


def episodic_events(rules: GuardrailsEngine, released: ReleasedAnswer, run: Run) -> list[JsonObject]:
    """Returns the events of a run that has an answer: tool calls, actions of the rules, the model."""
    details = released.details
    events: list[JsonObject] = [
        {"event": "tool_call", **_tool_call_event(rules, record), "run_id": run.id}
        for record in run.scope.tool_records or ()
    ]
    events += [{"event": "guardrail", **action, "run_id": run.id} for action in released.actions]
    events.append(
        {
            "event": "run",
            "run_id": run.id,
            "provider": details["provider"],
            "model": details["model"],
            "latency_ms": run.elapsed_ms(),
            "usage": details["usage"],
        }
    )
    return events


def _tool_call_event(rules: GuardrailsEngine, record: ToolCallRecord) -> JsonObject:
    result = (
        rules.filter_text(record.result[:_MAX_CHECKED], "tool_result")
        if rules.output_rules
        else record.result
    )
    return {
        "tool": record.name,
        "arguments": _checked_arguments(rules, record),
        "ok": record.ok,
        "result": result[:_MAX_STORED],
    }


def _checked_arguments(rules: GuardrailsEngine, record: ToolCallRecord) -> object:
    """Returns arguments as data, or as truncated text if they are long."""
    long = len(record.call.arguments) > _MAX_STORED
    if not rules.output_rules:
        return record.call.arguments[:_MAX_STORED] if long else arguments_of(record.call)
    # as data: in JSON the escape of a line end touches the next word
    data = filter_data(rules, arguments_of(record.call), "tool_argument")
    if isinstance(data, str):
        return data[:_MAX_STORED]
    return orjson.dumps(data).decode()[:_MAX_STORED] if long else data


# -- structured answers (`spec.output_schema`) ---------------------------------------------------------------
#
# `RunModel` sends the schema with every call whose text may be the answer, calls with tools included. The
# answer of the run is the JSON in the model's text, in its own characters.


async def enforce_schema(
    schema: AnswerSchema, outcome: Outcome, messages: tuple[Message, ...], run: Run
) -> Outcome:
    """Returns the outcome with a text that fits the schema.

    If the text does not fit, it calls the model again, without tools, in the conversation that led to the
    answer. An answer that was made without the schema (joined from several, or made by a role) gets one call
    with the schema before the call that repairs it.

    Args:
        messages: The messages that the pattern got.

    Raises:
        InvalidOutput: the answer and its repair do not fit; names the fault of the repair.
        Refused: the model refuses to repair.
        BudgetExhausted: a budget has ended the run before.
    """
    text, parsed = outcome.text, schema.parse(outcome.text)
    if not parsed.fault:
        return outcome.with_text(parsed.text)
    if outcome.budget:
        raise BudgetExhausted(
            f"The budget {outcome.budget} ended the run before it had an answer of spec.output_schema.",
            budget=outcome.budget,
        )
    earlier = run.model.request_for(text)
    had_schema = earlier is not None and earlier.output_schema is not None
    request = replace(
        earlier or CompletionRequest(messages), output_schema=schema.json_schema, tool_choice="none"
    )
    for _ in range(1 if had_schema else 2):
        repair = (*request.messages, Message("assistant", text), repair_message(parsed.fault))
        request = replace(request, messages=repair)
        result = await call_model(run.scope, run.model, request)
        if result.finish_reason == REFUSAL:
            raise Refused(REFUSAL)
        text = result.content
        parsed = schema.parse(text)
        if not parsed.fault:
            return outcome.with_text(parsed.text)
    raise InvalidOutput(f"The model's second answer does not fit spec.output_schema either: {parsed.fault}")


# -- the steps -----------------------------------------------------------------------------------------------


#: the finish reason of a model that refuses, or whose service withholds the answer
REFUSAL = "content_filter"
#: the answer of a run whose budget of time ends before the model has produced text
OUT_OF_TIME = "I could not finish this in the time that is set for me."


def admit(agent: Agent, request: RunRequest, run: Run) -> AdmittedQuery:
    """Step 3: the input rules, in declared order, pass, redact or block the query.

    Raises:
        GuardrailBlocked: with the type of the rule and the configured message.
    """
    journal = run.journal
    if journal is None:
        return _admit(agent, request, run)
    restore = partial(_restored, agent, request)
    rules = [rule.type for rule in agent.guardrails.input_rules]
    made = journal.once("input", lambda: _admit(agent, request, run), admitted_to_json, restore, rules)
    run.admitted_query = made.query
    if not journal.place:  # from here on no step needs the raw texts: they do not stay on disk
        stored, run.admitted_request = run.admitted_request, request_to_json(made.request, made.query)
        if journal.is_durable and run.admitted_request != stored:
            writer = journal.step_log.segment.writer
            writer.change(RunChange(request=run.admitted_request))
            if rules and (request.screening is None or request.screening.again):
                writer.scrub_soon()
    return made


def _admit(agent: Agent, request: RunRequest, run: Run) -> AdmittedQuery:
    started, screening = perf_counter(), request.screening
    checked = CheckedRequest(request)
    try:
        if screening is not None and screening.guardrail:
            raise GuardrailBlocked(screening.guardrail, screening.message, screening.actions)
        if agent.guardrails.input_rules and (screening is None or screening.again):
            checked = check_request(agent.guardrails, request)
    except GuardrailBlocked as blocked:
        for action in blocked.actions:
            run.stream.emit("guardrail.action", **action)
        raise
    before = () if screening is None else screening.actions
    actions, request = (*before, *checked.actions), checked.request
    _emit_checks(run, "input", actions, started, request.query)
    run.admitted_query = request.query
    return AdmittedQuery(
        request, request.query, actions, request.history, request.preface, request.continuation
    )


def _restored(agent: Agent, request: RunRequest, data: JsonObject) -> AdmittedQuery:
    """Returns a query that an earlier segment has admitted. A nested run has its context as it came."""
    return admitted_of(check_parts(agent.guardrails, request).request, data)


async def recall(agent: Agent, admitted: AdmittedQuery, run: Run) -> RecalledQuery:
    """Step 4: history, knowledge and past events of this session."""
    started = perf_counter()
    build = partial(
        agent.memory.build_context,
        agent.name,
        run.key.session_id,
        admitted.query,
        tenant=run.key.tenant,
        owner=run.owner,
    )
    if agent.memory.is_empty:
        memory = NO_CONTEXT
    elif run.journal is None:
        memory = await build()
    else:
        memory = await run.journal.value("memory", build, memory_to_json, memory_of)
    if memory.semantic_results or memory.episodic_events:
        run.scope.note_untrusted(_untrusted_sources(memory))
    if admitted.continuation or admitted.history:
        run.scope.note_untrusted(_client_results(admitted))
    run.stream.emit(
        "memory.loaded",
        turns=len(memory.conversation_history),
        semantic=len(memory.semantic_results),
        episodic=len(memory.episodic_events),
        degraded=list(memory.degraded),
        duration_ms=ms_since(started),
    )
    return RecalledQuery(admitted, memory)


def _untrusted_sources(memory: MemoryContext) -> Iterator[str]:
    """Names the recalled memory with untrusted text: passages, and results of tools."""
    if memory.semantic_results:
        yield "semantic memory"
    if any(event.get("event") == "tool_call" for event in memory.episodic_events):
        yield "episodic memory"


def _client_results(admitted: AdmittedQuery) -> Iterator[str]:
    """Names the tools whose results a client has sent among its messages."""
    messages = (*(admitted.history or ()), *admitted.continuation)
    return (message.name for message in messages if message.role == "tool")


async def render(agent: Agent, recalled: RecalledQuery, run: Run) -> PromptedQuery:
    """Step 5: the system prompt, then the history, then the query. An empty prompt is no message."""
    started = perf_counter()
    admitted, memory = recalled.admitted, recalled.memory
    request = admitted.request
    if agent.live.system is None:
        system = agent.prompt.render(memory, request.context, run.prompt_time, request.metadata)
    else:
        system = await _made_prompt(agent.live.system, run)
    if agent.skills:
        system = f"{system}\n\n{agent.skills}".strip()
    if request.terms.instructions:
        system = f"{system}\n\n{request.terms.instructions}".strip()
    history = memory.conversation_history if admitted.history is None else admitted.history
    while history and history[0].role == "system":  # a summary; some models accept one system message only
        system, history = f"{system}\n\n{history[0].content}".strip(), history[1:]
    if run.journal is not None and run.journal.system is not None:
        system = run.journal.system
    messages = (
        *((Message("system", system),) if system else ()),
        *history,
        *admitted.preface,
        Message("user", admitted.query, attachments=request.attachments),
        *admitted.continuation,
    )
    if run.journal is not None:
        run.journal.note_prompt(messages)
    run.stream.emit("prompt.rendered", characters=len(system), duration_ms=ms_since(started))
    return PromptedQuery(recalled, messages)


async def _made_prompt(make: SystemPrompt, run: Run) -> str:
    """Returns the prompt that a function of the program makes. A resumed run has the one that it had."""

    async def made() -> str:
        prompt: Any = make(run.scope.tool_context(""))
        if inspect.isawaitable(prompt):
            prompt = await prompt
        if not isinstance(prompt, str):
            name = getattr(make, "__name__", type(make).__name__)
            raise ConfigError(f"The function {name!r} of `system` returned {prompt!r}, not a text.")
        return prompt

    if run.journal is None:
        return await made()
    return await run.journal.value("system", made, lambda prompt: {"prompt": prompt}, itemgetter("prompt"))


_NO_TOOLS = NoTools()


async def equip(agent: Agent, prompted: PromptedQuery, run: Run) -> EquippedQuery:
    """Step 6: the schemas of the permitted tools."""
    is_replay = run.journal is not None and run.journal.step_log.is_replay
    if agent.tools.live and not is_replay:
        await _await_identity(agent, run)
        await agent.tools.prepare()
    request = prompted.recalled.admitted.request
    offered = request.terms.tools
    tools: ToolPort = agent.tools if offered is None else JoinedTools(offered, agent.tools)
    if request.tools is not None:
        tools = SelectedTools("run", request.tools, ToolBox(), tools, inject_all=False)
    if request.client_tools.specs:
        tools = JoinedTools(tools, client_tool_port(agent, request.client_tools.specs))
    if not agent.can_call_tools:
        tools = _NO_TOOLS
    specs = tools.specs()
    run.stream.emit("tools.listed", count=len(specs))
    return EquippedQuery(prompted, tools, specs)


async def _await_identity(agent: Agent, run: Run) -> None:
    """Makes a resumed run wait for the token of its caller if a server lists its tools to callers only."""
    caller = run.scope.caller
    if run.journal is None or not run.journal.step_log.is_of_run or caller is None or not caller.lacks_token:
        return
    if block := agent.tools.callers_only_block():
        await run.journal.identity(identity_question(block, caller.user_id))


async def orchestrate(agent: Agent, equipped: EquippedQuery, run: Run) -> tuple[EquippedQuery, Outcome]:
    """Steps 7 to 9: the pattern calls the router (8) and the tools (9) until it has an answer.

    The output rules apply to the message of an error, too.
    """
    request, accounts = equipped.prompted.recalled.admitted.request, run.accounts
    iterations = agent.max_iterations
    if request.terms.max_iterations is not None:
        iterations = agent.iterations_within(request.terms.max_iterations)
    messages = equipped.prompted.messages
    if agent.router.limits.window:
        run.model.earlier_messages = _forgotten(equipped.prompted.recalled)
        if agent.summarizes:
            messages = await _summarized(agent, equipped, run)
    task = PatternTask(messages, equipped.specs, iterations, request.context)
    tools = equipped.tools if accounts is None else ChargedTools(equipped.tools, accounts)
    try:
        if run.budget_ends is None:
            outcome = await agent.pattern.run(task, run.model, tools, run.scope)
        else:
            outcome = await _run_within_time(agent, task, tools, run, run.budget_ends)
        if accounts is not None or run.scope.ledger.refused or outcome.stop_reason == "budget":
            outcome = ended_by_budget(outcome, run.scope.ledger, accounts)
        outcome = _require_answer(agent, outcome, run)
        if agent.output_schema is not None:
            outcome = await enforce_schema(agent.output_schema, outcome, task.messages, run)
    except (UpstreamError, NodeFailed) as error:
        filter_error(agent.guardrails, error)
        raise
    return equipped, outcome


def _forgotten(recalled: RecalledQuery) -> int:
    """Returns how many messages of the session came before those that a run recalls."""
    memory = recalled.memory
    if recalled.admitted.history is not None or not memory.last_seq:
        return 0
    return memory.last_seq - sum(message.role != "system" for message in memory.conversation_history)


async def _summarized(agent: Agent, equipped: EquippedQuery, run: Run) -> tuple[Message, ...]:
    """Returns a conversation in which a summary replaces the turns that do not fit the context window.

    The session keeps the summary, so that the next runs recall it until the conversation has outgrown the
    window again. A model that cannot summarize leaves the conversation as it is: the turns are then left out.
    """
    limits, messages, recalled = agent.router.limits, equipped.prompted.messages, equipped.prompted.recalled
    if (found := outgrown(messages, equipped.specs, limits)) is None:
        return messages
    admitted, turns, last_seq = recalled.admitted, len(found.dropped), 0
    earlier = ""
    if admitted.history is None:
        history, last_seq = recalled.memory.conversation_history, recalled.memory.last_seq
        earlier = history[0].content if history and history[0].role == "system" else ""
        turns = last_seq - max(len(history) - bool(earlier) - len(found.dropped), 0)
    try:
        result = await call_model(run.scope, run.model, found.prompt(limits, earlier), role="summary")
    except UpstreamError as error:
        log.warning("summary_failed", agent=agent.name, code=error.code, error=str(error))
        return messages
    text = shortened_summary(agent.guardrails.filter_text(result.content), limits)
    if not text:
        return messages
    summary = Summary(text, turns)
    if last_seq and admitted.request.persist:
        await agent.memory.store_summary(run.key, summary)
    run.model.left_out = {"summarized_messages": len(found.dropped), "context_window": limits.window}
    return found.with_summary(summary.message().content, earlier)


def _require_answer(agent: Agent, outcome: Outcome, run: Run) -> Outcome:
    """Returns the outcome, with the stop reason `refused` if its text is a refusal of the model.

    Raises:
        Refused: it is, and the agent has an output schema.
        EmptyAnswer: the model has answered without text.
    """
    last = run.model.last
    if outcome.stop_reason != "completed" or last is None or last.tool_calls:
        return outcome
    if outcome.text.strip() != last.content.strip():  # the pattern's own text
        return outcome
    if last.finish_reason == REFUSAL and agent.output_schema is not None:
        raise Refused(REFUSAL)
    if not outcome.text.strip():
        raise EmptyAnswer
    return outcome if last.finish_reason != REFUSAL else replace(outcome, stop_reason="refused")


async def _run_within_time(
    agent: Agent, task: PatternTask, tools: ToolPort, run: Run, ends: float
) -> Outcome:
    """Runs the pattern within the budgets of `wall_seconds`. At their end the text so far is the answer."""
    clock, ledger = run.scope.clock, run.scope.ledger
    try:
        async with TimeLimit(ends - clock.monotonic() + agent.grace_seconds) as limit:
            outcome = await agent.pattern.run(task, run.model, tools, run.scope)
    except TimeoutError:
        if not limit.expired():
            raise
        outcome = Outcome(run.events.partial or OUT_OF_TIME, "budget", run.scope.steps[0])
    if run.budget_ends is not None and clock.monotonic() >= run.budget_ends:
        if run.accounts is not None and run.time_account is not None:
            run.accounts.time_ran_out(run.time_account)
        else:
            ledger.refused = ledger.refused or "wall_seconds"
    return outcome


async def release(agent: Agent, result: tuple[EquippedQuery, Outcome], run: Run) -> ReleasedAnswer:
    """Step 10: the output rules, in declared order. A blocked answer becomes the safe response."""
    started = perf_counter()
    equipped, outcome = result
    compared = CheckedText(outcome.text)
    admitted = equipped.prompted.recalled.admitted
    usage, last = run.scope.ledger.usage, run.model.last
    try:
        if agent.guardrails.answer_rules and outcome.stop_reason == "completed":
            is_json = agent.output_schema is not None
            passages = _retrieved(agent, run)
            compared = await agent.guardrails.check_answer(outcome.text, passages, is_json=is_json)
            outcome = outcome.with_text(compared.text)
        checked, output = _checked_answer(agent, outcome, run)
        checked = replace(checked, actions=(*compared.actions, *checked.actions))
    except GuardrailBlocked as blocked:
        for action in blocked.actions:
            run.stream.emit("guardrail.action", **action)
        raise
    run.scope.check_answer(checked.text)
    _emit_checks(run, "output", checked.actions, started, checked.text)
    if run.journal is not None:
        rules = [rule.type for rule in agent.guardrails.output_rules]
        run.journal.note("output", {"response": checked.text, "actions": list(checked.actions)}, rules)
    details: JsonObject = {
        "provider": last.provider if last else "",
        "model": last.model if last else "",
        "tokens_used": usage.total_tokens,
        "usage": usage.to_json(),
        "tools_called": list(run.scope.tools_called),
        "pattern": agent.pattern_name,
        "iterations": outcome.iterations,
        "stop_reason": outcome.stop_reason,
        "errors": list(run.events.node_errors),
        "nodes_visited": run.events.nodes_visited,
        "finish_reason": last.finish_reason if last else "stop",
        "attempts": list(run.model.attempts),
        **({} if not outcome.budget else {"budget": outcome.budget}),
        **({"left_out": run.model.left_out} if run.model.left_out else {}),
        **(_checked_metadata(agent, outcome, checked.text) if outcome.metadata else {}),
    }
    return ReleasedAnswer(admitted, checked.text, (*admitted.actions, *checked.actions), details, output)


def _checked_answer(agent: Agent, outcome: Outcome, run: Run) -> tuple[CheckedText, Any]:
    """Returns the answer under the output rules, and its JSON value if the agent has an output schema.

    Raises:
        GuardrailBlocked, InvalidOutput: the rules leave no answer that fits the schema.
    """
    streamed, last, output = run.events.last, run.model.last, UNSET
    if streamed is not None and streamed[0] == outcome.text:
        run.events.settle(streamed[1].text)
        return streamed[1], output  # the rules have checked it while it streamed
    tokens_used = run.scope.ledger.usage.total_tokens
    output_tokens = last.usage.output_tokens if last else 0
    checked = CheckedText(outcome.text)
    if agent.output_schema is not None:
        checked, output = _checked_value(agent, agent.output_schema, outcome.text, tokens_used, output_tokens)
    elif agent.guardrails.output_rules:
        checked = agent.guardrails.check_output(
            outcome.text, tokens_used=tokens_used, output_tokens=output_tokens
        )
    steps = run.events.answer_steps
    has_step = steps is not None and steps.settle(checked.text)
    if checked.text and not has_step and run.stream.streaming:
        # text that no step has streamed becomes a step of its own
        step = run.scope.next_step() if run.events.streaming else run.scope.steps[0]
        run.events.send_answer(step, checked.text)
    return checked, output


def _checked_value(
    agent: Agent, schema: AnswerSchema, text: str, tokens_used: int, output_tokens: int
) -> tuple[CheckedText, Any]:
    """Returns the text and the value of a structured answer. The rules work inside its texts."""
    value = orjson.loads(text)
    if not agent.guardrails.output_rules:
        return CheckedText(text), value
    checked = agent.guardrails.check_value(value, tokens_used=tokens_used, output_tokens=output_tokens)
    if not checked.actions:
        return CheckedText(text), value
    text = orjson.dumps(checked.value).decode()
    if fault := schema.parse(text).fault:
        raise InvalidOutput(f"What the output rules leave of the answer does not fit its schema: {fault}")
    return CheckedText(text, checked.actions), checked.value


async def remember(agent: Agent, released: ReleasedAnswer, run: Run) -> None:
    """Step 11: stores both turns and the episodic events in one transaction."""
    request = released.admitted.request
    if not request.persist:
        return
    started = perf_counter()
    if run.lock is not None and run.lock.check_newest is not None:
        await run.lock.check_newest()
    run.persisted = True  # from here on a cancel does not store the partial answer: no turn is written twice
    try:
        if not agent.memory.is_empty:
            await (_persist_once if run.is_durable else _persist)(agent, released, run)
    except asyncio.CancelledError as error:
        run.persisted = NOT_DONE not in error.args
        raise
    run.stream.emit("memory.persisted", turns=2, duration_ms=ms_since(started))


async def _persist_once(agent: Agent, released: ReleasedAnswer, run: Run) -> None:
    """Writes to the session of a durable run while its lease is held, unless an earlier segment has."""
    journal = run.journal
    assert journal is not None
    await journal.require_lease()
    failpoints.reach(failpoints.BEFORE_STEP_11)
    await journal.value("kept", partial(_persist, agent, released, run), lambda _: {}, lambda _: None)
    failpoints.reach(failpoints.AFTER_STEP_11)


async def _persist(agent: Agent, released: ReleasedAnswer, run: Run) -> None:
    now = run.scope.clock.now()
    once, token = run.is_durable, run.lease_token
    async with agent.memory.transaction(run.key, run.owner, skip_written=once, token=token) as transaction:
        transaction.persist_turn(Turn("user", released.admitted.query, created_at=now, run_id=run.id))
        author = released.details.get("answered_by", "")
        transaction.persist_turn(
            Turn("assistant", released.response, created_at=now, run_id=run.id, author=author)
        )
        if agent.memory.episodic is not None:
            transaction.record(episodic_events(agent.guardrails, released, run))


async def remember_partial(agent: Agent, request: RunRequest, run: Run) -> None:
    """Stores what a cancelled run has released: both turns, the answer marked `partial`."""
    text = run.events.partial
    if not text or not request.persist or run.persisted:
        return
    now = run.scope.clock.now()
    once, token = run.is_durable, run.lease_token
    async with agent.memory.transaction(run.key, run.owner, skip_written=once, token=token) as transaction:
        transaction.persist_turn(Turn("user", run.admitted_query, created_at=now, run_id=run.id))
        transaction.persist_turn(Turn("assistant", text, created_at=now, run_id=run.id, status="partial"))


def respond(agent: Agent, released: ReleasedAnswer, run: Run) -> RunAnswer:
    """Step 12: the answer that every transport encodes."""
    metadata = {
        **released.details,
        "latency_ms": run.elapsed_ms(),
        "trace_id": run.trace_id,
        "guardrails": list(released.actions),
    }
    key = run.key.session_id
    may_cite = agent.knowledge_tools or run.scope.nested_citations
    cited = _citations(agent, released, run) if may_cite else UNSET
    return RunAnswer(released.response, agent.name, key, run.id, metadata, released.output, cited)


def _searches(agent: Agent, run: Run) -> list[Search]:
    """Returns the searches of the run's own tools, in order."""
    pipelines = agent.knowledge_tools
    calls = [one for one in run.scope.tool_records or () if one.call.name in pipelines]
    return [Search(pipelines[one.call.name], one.result) for one in calls]


def _retrieved(agent: Agent, run: Run) -> list[RetrievedPassage]:
    """Returns the passages that the run has read, and those that its nested runs cite."""
    found = retrieved_passages(_searches(agent, run), run.scope.nested_citations)
    return [RetrievedPassage(one["document"], one["passage"]) for one in found]


def _citations(agent: Agent, released: ReleasedAnswer, run: Run) -> Any:
    """Returns the passages that the answer draws on, under the output rules."""
    nested = run.scope.nested_citations
    cited = cited_passages(released.response, _searches(agent, run), nested)
    if agent.guardrails.output_rules:
        cited = filter_data(agent.guardrails, cited)
    run.scope.citations[:] = cited
    return cited


def _checked_metadata(agent: Agent, outcome: Outcome, response: str) -> JsonObject:
    """Returns the metadata of a pattern, with every text under the output rules."""
    if not agent.guardrails.output_rules:
        return outcome.metadata
    found: JsonObject = filter_data(agent.guardrails, outcome.metadata, checked={outcome.text: response})
    return found


def _emit_checks(run: Run, stage: str, actions: tuple[JsonObject, ...], started: float, text: str) -> None:
    """`text`: the checked text; traces hold it if `telemetry.capture_content` is set."""
    for action in actions:
        run.stream.emit("guardrail.action", **action)
    content = {} if run.content_recorder is None else {"content": run.content_recorder.text(text)}
    run.stream.emit(
        "guardrails.checked", stage=stage, actions=len(actions), duration_ms=ms_since(started), **content
    )
