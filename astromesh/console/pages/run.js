// @ts-check
// One run: its facts, its steps as a waterfall, the chosen step, the raw events. A run that is going on grows in place.
import { follow, get, post, Problem } from "../api.js";
import { MakeCase } from "../case.js";
import { Diagram, fromMermaid, wayOf } from "../diagram.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { Markdown } from "../markdown.js";
import { refresh, useResource } from "../poll.js";
import { rowsOfSteps, textOf } from "../recording.js";
import { chosenTab, link, place, refine } from "../router.js";
import { RecordedStep, useReplay } from "../step.js";
import { emptyStory, isEnd, tell } from "../steps.js";
import { Ago, Citations, Confirm, CopyRequest, cost, count, Difference, duration, Empty, Fact, Failure, Head, Id, Json, LongList, msOf, Pill, plain, Refusal, Tabs, tokens, useAction, Waits } from "../ui.js";

const TABS = ["Steps", "Answer", "Graph", "Events"];
const ROW = 28;
const GOING_ON = ["queued", "running", "waiting"];

/** @param {{path: string[]}} props */
export default function Run({ path: [, id] }) {
  const path = `/v1/runs/${encodeURIComponent(id)}`;
  const state = useResource(path);
  const { story, events, problem } = useEvents(`${path}/events`);
  const run = state.value;
  const isGoingOn = run && GOING_ON.includes(run.status);
  const ended = story.endType || (run && !isGoingOn);
  const recording = useResource(ended ? `${path}/steps` : "", { live: false });
  const traceId = run?.result?.metadata?.trace_id || story.end?.metadata?.trace_id;
  const trace = useResource(traceId && recording.problem ? `/v1/traces/${traceId}` : "", { live: false });
  useEffect(() => {
    if (story.endType) refresh(path);
  }, [story.endType]);
  const steps = recording.value?.steps;
  const isRecorded = steps?.length > 0;
  // the rows of a run that has ended are drawn once, from its record; only a run that is seen to go on begins with its events
  const isFollowed = useRef(false);
  isFollowed.current ||= !!isGoingOn && !story.endType;
  const isLoading = !isFollowed.current && (state.loading || recording.loading || trace.loading);
  const rows = useMemo(
    () => (isLoading ? [] : isRecorded ? rowsOfSteps(steps, run?.forked_from?.step || 0) : rowsOf(story, trace.value)),
    [isLoading, story.last, trace.value, steps, run?.forked_from?.step],
  );
  const tab = chosenTab(TABS);
  const wanted = Number(place.value.query.step || run?.forked_from?.step || 0);
  const at = Math.max(0, rows.findIndex((row) => row.number === wanted));
  const choose = (/** @type {number} */ to) => refine({ step: rows[Math.max(0, Math.min(to, rows.length - 1))]?.number });
  const [draft, setDraft] = useState(/** @type {any} */ (null));
  const replay = useReplay(id);
  useKeys([
    ["j", "Next step", () => choose(at + 1)],
    ["k", "Previous step", () => choose(at - 1)],
    ["e", "Raw events", () => refine({ tab: tab === "Events" ? "Steps" : "Events" })],
  ]);
  const action = useAction();
  const status = story.endType ? story.endType.slice(4) : story.waiting ? "waiting" : run?.status;
  const result = story.end || run?.result;
  return html`
    <${Head} trail=${[["Runs", link(["runs"])]]} title=${html`<${Id} id=${id} />`}>
      ${status && html`<${Pill} state=${status} />`}<span class="grow"></span>
      ${isGoingOn && html`<${Confirm} label="Cancel the run" question="Cancel it and its nested runs?" disabled=${action.busy}
        onYes=${() => action.run(async () => (await post(`${path}/cancel`), refresh(path, "/v1/runs")))} />`}
      ${run && !isGoingOn && html`<${Feedback} path=${path} />
        ${isRecorded && html`<button type="button" disabled=${replay.busy} onClick=${replay.start}>Replay</button>
          <a class="button" href=${link(["compare"], { a: run.forked_from?.run_id || id, b: run.forked_from ? id : "" })}>Compare</a>`}
        <${MakeCase} id=${id} />`}
      <${CopyRequest} path=${path} />
      <button type="button" class="quiet" onClick=${() => download(`${id}.json`, { run, events, steps, trace: trace.value })}>Download</button>
    <//>
    <${Refusal} problem=${action.problem || state.problem || replay.problem} />
    ${replay.found && html`<${Replayed} replay=${replay.found} onClose=${replay.close} />`}
    ${run && html`<div class="facts">
      <${Fact} name="Agent"><a class="link" href=${link(["agents", run.agent])}>${plain(run.agent)}</a><//>
      <${Fact} name="Session"><a class="link mono" href=${link(["sessions", run.agent, run.session_id])}>${plain(run.session_id)}</a><//>
      <${Fact} name="Started"><${Ago} at=${run.created_at} /><//>
      <${Fact} name="Duration">${run.finished_at ? duration(msOf(run.finished_at) - msOf(run.created_at)) : "–"}<//>
      <${Fact} name="Model calls">${story.steps.filter((step) => step.kind === "model").length || "–"}<//>
      <${Fact} name="Tokens">${count(tokens(run.usage))}${run.usage?.cached_tokens ? html` <i class="muted">(${count(run.usage.cached_tokens)} cached)</i>` : ""}<//>
      <${Fact} name="Cost">${cost(run.usage?.cost_usd)}<//>
      ${run.tags?.length > 0 && html`<${Fact} name="Tags">${run.tags.map((/** @type {string} */ tag) => html`<a class="link" href=${link(["runs"], { tag })}>${plain(tag)}</a> `)}<//>`}
      ${run.forked_from && html`<${Fact} name=${`Fork at step ${run.forked_from.step}${run.forked_from.edit ? `, ${run.forked_from.edit} edited` : ""}`}>
        <${Id} id=${run.forked_from.run_id} href=${link(["runs", run.forked_from.run_id], { step: run.forked_from.step })} /><//>`}
      ${(result?.metadata?.stop_reason || "completed") !== "completed" && html`<${Fact} name="Stopped by">${plain(result.metadata.stop_reason)}<//>`}
    </div>`}
    <${Failure} error=${run?.error || (story.endType === "run.failed" ? story.end : null)} />
    <${Tabs} tabs=${TABS} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })}>
      <span class="muted">${isLoading ? "Loading." : `${rows.length} steps · ${events.length} events`}</span>
    <//>
    ${tab === "Events" && html`<${Refusal} problem=${problem} />`}
    ${tab === "Steps" && html`<${Steps} rows=${rows} at=${at} choose=${choose} waiting=${story.waiting}>
      ${recording.problem?.code === "not_recorded" && html`<${NotRecorded} problem=${recording.problem} />`}
      ${rows[at]?.recorded && html`<${RecordedStep} page="runs" id=${id} chosen=${rows[at].recorded} draft=${draft} setDraft=${setDraft} canFork=${!isGoingOn}>
        <${StepTitle} step=${rows[at]} at=${at} of=${rows.length} /><//>`}<//>`}
    ${tab === "Answer" && html`<div class="pane narrow"><${Answer} story=${story} run=${run} /></div>`}
    ${tab === "Graph" && run && html`<${Graph} agent=${run.agent} story=${story} last=${story.last} />`}
    ${tab === "Events" && html`<${Events} events=${events} size=${events.length} />`}`;
}

/** Follows the events of a run. Drawing waits for the next frame, however many come. @param {string} path */
function useEvents(path) {
  const [, redraw] = useState(0);
  const kept = useRef({ story: emptyStory(), events: /** @type {any[]} */ ([]), problem: /** @type {Problem | null} */ (null) });
  useEffect(() => {
    const end = new AbortController();
    kept.current = { story: emptyStory(), events: [], problem: null };
    let drawing = 0;
    const draw = () => {
      drawing ||= requestAnimationFrame(() => {
        drawing = 0;
        redraw((n) => n + 1);
      });
    };
    follow(path, (events) => {
      for (const event of events) kept.current.events.push(event);
      tell(kept.current.story, events);
      draw();
    }, end.signal, { isLast: isEnd, onProblem: (problem) => ((kept.current.problem = problem), draw()) });
    return () => {
      end.abort();
      cancelAnimationFrame(drawing);
    };
  }, [path]);
  return kept.current;
}

/**
 * The rows of the waterfall: spans of the trace where there are some, which have times, else the steps of the events.
 * @param {import("../steps.js").Story} story @param {any} trace
 */
function rowsOf(story, trace) {
  const spans = trace?.spans || [];
  if (!spans.length) {
    return story.steps.map((step, n) => ({
      number: n + 1, name: step.name, kind: step.kind, state: step.state, ms: step.ms, depth: 0, left: 0, width: 0, detail: step.detail, text: step.text,
    }));
  }
  const start = spans.reduce((/** @type {number} */ least, /** @type {any} */ span) => Math.min(least, span.start), Infinity);
  const whole = spans.reduce((/** @type {number} */ most, /** @type {any} */ span) => Math.max(most, (span.start - start) * 1000 + (span.duration_ms || 0)), 0.001);
  /** @type {Map<string | null, any[]>} */
  const children = new Map();
  const ids = new Set(spans.map((/** @type {any} */ span) => span.span_id));
  for (const span of spans) {
    const parent = ids.has(span.parent_id) ? span.parent_id : null;
    const known = children.get(parent);
    if (known) known.push(span);
    else children.set(parent, [span]);
  }
  /** @type {any[]} */
  const rows = [];
  const add = (/** @type {string | null} */ parent, /** @type {number} */ depth) => {
    for (const span of (children.get(parent) || []).sort((a, b) => a.start - b.start)) {
      const step = stepOf(story, span);
      rows.push({
        number: rows.length + 1, name: step?.name || nameOf(span), kind: KINDS[span.name] || "agent", state: span.status === "ok" ? "completed" : "failed",
        ms: span.duration_ms, depth, left: (((span.start - start) * 1000) / whole) * 100,
        width: ((span.duration_ms || 0) / whole) * 100, detail: { ...span.attributes, ...step?.detail }, text: step?.text,
      });
      add(span.span_id, depth + 1);
    }
  };
  add(null, 0);
  return rows;
}

/** @type {Record<string, string>} */
const KINDS = {
  "llm.complete": "model", "tool.call": "tool", "guardrails.input": "rule", "guardrails.output": "rule",
  memory_build: "memory", memory_persist: "memory", prompt_render: "prompt", orchestration: "agent", "agent.run": "agent", "graph.node": "agent",
};
/** @type {Record<string, string>} */
const NAMES = {
  "agent.run": "Run", "guardrails.input": "Input rules", "guardrails.output": "Output rules", memory_build: "Memory",
  memory_persist: "Turns stored", prompt_render: "Prompt", orchestration: "Pattern",
};

/** @param {any} span */
function nameOf(span) {
  const of = span.attributes || {};
  if (span.name === "llm.complete") return of.model || of.provider || "Model";
  if (span.name === "tool.call") return of.name || "Tool";
  if (span.name === "agent.run") return of.agent || "Run";
  return of.node || NAMES[span.name] || span.name;
}

/** The step of the events that a span of this run's trace measures. @param {import("../steps.js").Story} story @param {any} span */
function stepOf(story, span) {
  const of = span.attributes || {};
  if (span.name === "llm.complete") {
    const step = story.byId.get(`s${of.step}`);
    return step && String(span.span_id).endsWith(`.${step.last}`) ? step : undefined;
  }
  if (span.name === "tool.call") return story.byId.get(`t${of.id}`);
  return undefined;
}

/** @param {{rows: any[], at: number, choose: (at: number) => void, waiting: any, children?: any}} props the children show a recorded step */
export function Steps({ rows, at, choose, waiting, children }) {
  const step = rows[at];
  return html`<div class="split">
    <section class="fall" aria-label="Steps">
      ${waiting && html`<${Waits} of=${waiting} />`}
      <div class="head"><span>Step</span><span>Time</span><span class="r">Took</span></div>
      <${LongList} label="Steps of the run" count=${rows.length} height=${ROW} chosen=${at} row=${(/** @type {number} */ n) => html`
        <button type="button" key=${n} class=${`step ${n === at ? "on" : ""}`} aria-current=${n === at ? "step" : undefined} onClick=${() => choose(n)}>
          <span class=${`name d${Math.min(rows[n].depth, 4)}`}><i>${rows[n].number}</i>${plain(rows[n].name)}${rows[n].state === "failed" ? html` <b class="bad-text">failed</b>` : rows[n].state === "running" ? html` <b class="run-text">running</b>` : rows[n].state === "recorded" ? html` <span class="muted">from the recording</span>` : ""}</span>
          <span class="lane">${rows[n].width > 0 && html`<span class=${`bar ${rows[n].kind}`} style=${{ left: `${rows[n].left}%`, width: `${rows[n].width}%` }}></span>`}</span>
          <span class="ms num">${duration(rows[n].ms)}</span>
        </button>`} />
    </section>
    <section aria-label="The chosen step">${children}${step && !step.recorded && html`<div class="pane">
      <${StepTitle} step=${step} at=${at} of=${rows.length} />
      <${Detail} step=${step} />
    </div>`}</section>
  </div>`;
}

/** @param {{step: any, at: number, of: number}} props */
export const StepTitle = ({ step, at, of }) => html`<div class="title-row"><h2>${plain(step.name)}</h2>${step.state ? html`<${Pill} state=${step.state} />` : html`<span class=${`pill kind ${step.kind}`}>${step.kind}</span>`}
  <span class="grow"></span><span class="muted">${at + 1} of ${of} <kbd>j</kbd> <kbd>k</kbd></span></div>`;

/** Why this run cannot be forked, replayed or compared, and the key that changes it for the next ones. @param {{problem: Problem}} props */
const NotRecorded = ({ problem }) => html`<div class="note"><p>${plain(problem.message)}</p>
  ${problem.message.includes("recording: true") && html`<${Empty} command=${"spec:\n  recording: true"}>With this in the agent's YAML, its next runs can be forked, replayed and compared.<//>`}</div>`;

/** @param {{replay: any, onClose: () => void}} props */
function Replayed({ replay, onClose }) {
  const { divergence } = replay;
  return html`<section class="pane replayed" aria-label="Replay">
    <div class="title-row">${divergence ? html`<${Pill} state="failed" text="differs" />` : html`<${Pill} state="ok" text="identical" />`}
      <span>${divergence
        ? html`First difference: ${divergence.step ? html`<a class="link" href=${link(place.value.path, { step: divergence.step })}>step ${divergence.step}</a>` : "its end"}, ${plain(divergence.name || divergence.path)}, at <span class="mono">${plain(divergence.at)}</span>`
        : `Replayed without a call: all ${count(replay.compared)} requests, arguments and answers are the same, to the byte.`}</span>
      <span class="grow"></span><button type="button" class="quiet" onClick=${onClose}>Close</button></div>
    ${divergence && html`<${Difference} before=${textOf(divergence.recorded)} after=${textOf(divergence.replayed)} names=${["recorded", "replayed"]} />`}
  </section>`;
}

/** @param {{step: any}} props */
function Detail({ step }) {
  const { usage, arguments: given, attempts, ...rest } = step.detail || {};
  return html`
    ${step.text && html`<div class="msg"><div class="who">text of the model</div><div class="what"><${Markdown} text=${step.text} /></div></div>`}
    ${given !== undefined && html`<div class="msg"><div class="who">arguments</div><div class="what"><${Json} value=${given} /></div></div>`}
    ${usage && html`<div class="msg"><div class="who">usage</div><div class="what num">${count(usage.input_tokens)} in · ${count(usage.output_tokens)} out · ${count(usage.cached_tokens || 0)} cached · ${cost(usage.cost_usd)}</div></div>`}
    ${attempts?.length > 0 && html`<div class="msg"><div class="who">failed attempts</div><div class="what"><${Json} value=${attempts} /></div></div>`}
    <div class="msg"><div class="who">all that was recorded</div><div class="what"><${Json} value=${rest} /></div></div>`;
}

/** @param {{story: any, run: any}} props */
function Answer({ story, run }) {
  const text = story.end?.response ?? run?.result?.response ?? story.answer;
  return html`${text ? html`<${Markdown} text=${text} />` : html`<p class="muted">No text${run?.finished_at ? "" : " yet"}.</p>`}
    <${Citations} of=${run?.result?.citations || story.end?.citations} />`;
}

/** The graph of an agent with what has been visited. The story grows in place, so `last` says that it has.
 * @param {{agent: string, story: any, last: number, short?: boolean}} props short: without its models and tools */
export function Graph({ agent, story, short = false }) {
  const [drawing, setDrawing] = useState(/** @type {any} */ (null));
  useEffect(() => {
    get(`/v1/agents/${encodeURIComponent(agent)}/graph`).then((text) => setDrawing(fromMermaid(text)), () => setDrawing({ nodes: [], edges: [], groups: [] }));
  }, [agent]);
  const drawn = useMemo(() => drawing && (short ? wayOf(drawing) : drawing), [drawing, short]);
  if (!drawn) return html`<p class="muted pad">Loading the graph.</p>`;
  /** @type {Map<string, string>} */
  const states = new Map();
  for (const step of story.steps) {
    if (step.kind === "node" || step.kind === "tool") {
      states.set(step.name, step.state === "running" ? "lit" : step.state === "failed" ? "bad" : "done");
    }
  }
  return html`<${Diagram} label=${`Graph of ${agent}`} edges=${drawn.edges} groups=${drawn.groups}
    nodes=${drawn.nodes.map((/** @type {any} */ node) => ({ ...node, state: states.get(node.label.split(" (")[0]) || "" }))} />`;
}

/** The list grows in place, so `size` says that it has. @param {{events: any[], size: number}} props */
function Events({ events, size }) {
  const [chosen, setChosen] = useState(0);
  const [wanted, setWanted] = useState("");
  const shown = useMemo(() => (wanted ? events.filter((event) => event.type.includes(wanted)) : events), [events, size, wanted]);
  const event = shown[chosen];
  return html`<div class="split">
    <section aria-label="Events">
      <div class="filters"><label class="field"><span>Type contains</span><input value=${wanted} onInput=${(/** @type {any} */ e) => setWanted(e.target.value)} /></label></div>
      <${LongList} label="Raw events" count=${shown.length} height=${ROW} chosen=${chosen} row=${(/** @type {number} */ n) => html`
        <button type="button" key=${n} class=${`line ${n === chosen ? "on" : ""}`} onClick=${() => setChosen(n)}>
          <span class="num muted">${shown[n].seq}</span><span class="mono">${plain(shown[n].type)}</span><span class="mono muted">${plain(JSON.stringify(shown[n].data)).slice(0, 140)}</span>
        </button>`} />
    </section>
    <section aria-label="The chosen event"><div class="pane">${event && html`<h2>${plain(event.type)}</h2><${Json} value=${event.data} />`}</div></section>
  </div>`;
}

/** @param {{path: string}} props */
function Feedback({ path }) {
  const [rated, setRated] = useState("");
  const action = useAction();
  const rate = (/** @type {number} */ rating) => action.run(async () => (await post(`${path}/feedback`, { rating }), setRated(rating > 0 ? "good" : "bad")));
  if (rated) return html`<span class="muted" role="status">Rated ${rated}</span>`;
  return html`<span class="group" role="group" aria-label="Rate the answer">
    <button type="button" class="quiet" disabled=${action.busy} onClick=${() => rate(1)}>Good</button>
    <button type="button" class="quiet" disabled=${action.busy} onClick=${() => rate(-1)}>Bad</button>
    ${action.problem && html`<span class="bad-text">${plain(action.problem.message)}</span>`}</span>`;
}

/** @param {string} name @param {any} content */
function download(name, content) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(content, null, 2)], { type: "application/json" }));
  const anchor = Object.assign(document.createElement("a"), { href: address, download: name });
  anchor.click();
  URL.revokeObjectURL(address);
}
