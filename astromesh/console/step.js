// @ts-check
// A recorded step: what went in and came out, edited in place, and the fork that goes on from there.
import { post } from "./api.js";
import { html, useEffect, useState } from "./lib.js";
import { useKeys } from "./keys.js";
import { Markdown } from "./markdown.js";
import { useResource } from "./poll.js";
import { answerOf, editOf, messagesOf, readable, textOf } from "./recording.js";
import { go, link } from "./router.js";
import { cost, count, duration, Json, plain, Refusal, Select, tokens, useAction } from "./ui.js";

/** Edits that stand at a part of a step. The others have no text there and are begun below. */
const IN_PLACE = ["query", "system", "output", "tool_result"];
/** @type {[string, string][]} */
const SESSIONS = [["", "none"], ["new", "a new session"], ["same", "the session of the run"]];

/**
 * @typedef {{step: number, kind: string, text: string}} Draft
 * @typedef {"runs" | "tasks"} Page of what has the record, and of its forks
 * @param {{page: Page, id: string, chosen: import("./recording.js").Recorded, draft: Draft | null, setDraft: (draft: Draft | null) => void, canFork: boolean, children?: any}} props
 */
export function RecordedStep({ page, id, chosen, draft, setDraft, canFork, children }) {
  const path = `/v1/${page}/${encodeURIComponent(id)}/steps/${chosen.step}`;
  const found = useResource(path, { live: false });
  const step = found.value;
  const mine = draft?.step === chosen.step ? draft : null;
  const begin = (/** @type {string} */ kind) => step && setDraft({ step: chosen.step, kind, text: editOf(step.kind, kind).begin(step) });
  const [first] = chosen.editable;
  useKeys([["f", "Fork from this step", () => canFork && first && begin(first)]]);
  const at = { step, mine, begin: canFork ? begin : null, write: (/** @type {string} */ text) => mine && setDraft({ ...mine, text }) };
  return html`<div class="pane">
    ${children}
    <p class="muted num">${duration(chosen.duration_ms)}${chosen.usage ? ` · ${count(tokens(chosen.usage))} tokens · ${cost(chosen.usage.cost_usd)}` : ""} · <span class="mono">${plain(chosen.path)}</span></p>
    <${Refusal} problem=${found.problem} />
    ${!step && !found.problem && html`<p class="muted">Loading.</p>`}
    ${step && partsOf(step).map((part, n) => html`<${Part} key=${`${chosen.step}/${n}`} part=${part} at=${at} />`)}
    ${step && canFork && html`<${Fork} key=${chosen.step} page=${page} id=${id} step=${step} draft=${mine} setDraft=${setDraft} begin=${begin} write=${at.write} />`}
  </div>`;
}

/** @typedef {{who: string, value: any, edit?: string, markdown?: boolean, folded?: boolean}} PartOf */

/** @param {any} step @returns {PartOf[]} */
function partsOf(step) {
  const { input, output, kind, name } = step;
  if (kind !== "model" && !output) return [{ who: "output", value: "It is no longer stored." }];
  const make = PARTS[kind];
  return make ? make(input || {}, output || {}, step) : [{ who: name, value: output }];
}

/** @param {any} step @returns {PartOf[]} */
function messageParts(step) {
  const messages = messagesOf(step);
  const system = messages.findIndex((/** @type {any} */ one) => one.role === "system");
  return messages.map((/** @type {any} */ one, /** @type {number} */ n) => ({
    who: one.tool_calls?.length ? `${one.role} · calls ${one.tool_calls.map((/** @type {any} */ call) => call.name).join(", ")}` : one.name ? `${one.role} · ${one.name}` : one.role,
    value: one.tool_calls?.length ? answerOf({ output: one }).tool_calls.map((/** @type {any} */ call) => call.arguments) : readable(one.content ?? ""),
    edit: n === system ? "system" : undefined,
  }));
}

/** What each kind of step shows. @type {Record<string, (input: any, output: any, step: any) => PartOf[]>} */
const PARTS = {
  rule: (_, { query, response, actions, ...rest }) => [
    query !== undefined ? { who: "message", value: query, edit: "query" } : { who: "answer", value: response, markdown: true },
    { who: "verdicts of the rules", value: actions?.length ? actions : "Nothing was changed." },
    { who: "more", value: rest, folded: true },
  ],
  memory: (_, output) => ("semantic" in output ? recalled(output) : Object.entries(output).map(([who, value]) => ({ who, value }))),
  prompt: (_, __, step) => messageParts(step),
  model: ({ messages, tools, ...parameters }, output, step) => [
    ...messageParts(step),
    ...(tools?.length ? [{ who: `${tools.length} ${tools.length === 1 ? "tool" : "tools"}: ${tools.map((/** @type {any} */ tool) => tool.name).join(", ")}`, value: tools, folded: true }] : []),
    ...(Object.keys(parameters).length ? [{ who: "parameters", value: parameters, folded: true }] : []),
    output.error
      ? { who: "failed", value: `${output.error}: ${output.message}` }
      : { who: `response · ${output.provider ?? ""} ${output.model ?? ""} · ${output.finish_reason ?? ""}`, value: answerOf(step), markdown: !output.tool_calls?.length, edit: "output" },
  ],
  tool: (input, output) => [
    { who: "arguments", value: readable(input.arguments ?? {}) },
    { who: "result", value: readable(output.value ?? output.content ?? output), edit: "tool_result" },
    { who: "all that was recorded", value: output, folded: true },
  ],
  stage: ({ input }, { output, ...rest }) => [
    { who: "input", value: readable(input), edit: "query" },
    { who: "output", value: readable(output), edit: "output" },
    { who: "end and transition", value: rest, folded: true },
  ],
  node: (input, { result, ...rest }) => [
    ...(input ? [{ who: "what nodes before have written", value: input, folded: true }] : []),
    { who: "output", value: readable(result?.output ?? result?.response ?? result ?? ""), edit: "output" },
    { who: "state and transition", value: rest, folded: true },
    { who: "all that was recorded", value: result, folded: true },
  ],
};

/** What a run has remembered: each passage with the nearness to the message for which it was recalled. @param {any} output @returns {PartOf[]} */
const recalled = ({ history = [], semantic = [], episodic = [], degraded = [] }) => [
  ...semantic.map((/** @type {any} */ [text, score, source, about, why], /** @type {number} */ n) => ({
    who: source === "fact"
      ? `fact about the person since ${about?.since} · ${why?.newest ? "one of the newest" : `${Number(score).toFixed(3)} near to the message`}`
      : `passage ${n + 1} · ${Number(score).toFixed(3)} near to the message${source ? ` · ${source}` : ""}`,
    value: text,
  })),
  ...episodic.map((/** @type {any} */ event) => ({ who: "event of an earlier session", value: event })),
  { who: `history: ${history.length} messages`, value: history.length ? history : "none", folded: history.length > 0 },
  ...(semantic.length || episodic.length ? [] : [{ who: "passages and events", value: "none" }]),
  ...(degraded.length ? [{ who: "memories that did not answer", value: degraded }] : []),
];

/** The parts of a recorded step, to read. @param {{step: any}} props */
export const StepParts = ({ step }) => partsOf(step).map((part, n) => html`<${Part} key=${n} part=${part} at=${{ step, mine: null, begin: null, write: () => {} }} />`);

/** One part of a step; the one that is edited is a field. @param {{part: PartOf, at: any}} props */
function Part({ part, at: { step, mine, begin, write } }) {
  const { who, value, edit, markdown, folded } = part;
  const can = edit && begin && step.editable.includes(edit);
  const edited = can && mine?.kind === edit;
  const text = textOf(value);
  if (folded) return html`<details class="msg"><summary class="who">${plain(who)}</summary><div class="what"><${Json} value=${value} /></div></details>`;
  return html`<div class=${`msg ${edited ? "edit" : ""}`}>
    <div class="who title-row"><span>${plain(who)}</span>${edited && html`<b class="run-text">edited</b>`}<span class="grow"></span>
      ${can && !edited && html`<button type="button" class="quiet small" onClick=${() => begin(edit)}>${editOf(step.kind, edit).label}</button>`}</div>
    <div class="what">${edited
      ? html`<${Field} label=${editOf(step.kind, edit).label} rows=${editOf(step.kind, edit).rows} text=${mine.text} write=${write} />`
      : markdown && text ? html`<${Markdown} text=${text} />` : html`<${Json} value=${value} />`}</div>
  </div>`;
}

/** Begins at the first character, and leaves the place of the caret alone afterwards. @param {HTMLTextAreaElement | null} element */
function focusOnce(element) {
  if (!element || element.dataset.seen) return;
  element.dataset.seen = "yes";
  element.setSelectionRange(0, 0);
  element.focus();
}

/** @param {{label: string, rows: number, text: string, write: (text: string) => void}} props */
const Field = ({ label, rows, text, write }) => html`<textarea class="mono" rows=${rows} aria-label=${label} value=${text}
  ref=${focusOnce}
  onInput=${(/** @type {any} */ event) => write(event.target.value)}></textarea>`;

/** @param {{page: Page, id: string, step: any, draft: Draft | null, setDraft: (draft: Draft | null) => void, begin: (kind: string) => void, write: (text: string) => void}} props */
function Fork({ page, id, step, draft, setDraft, begin, write }) {
  const [session, setSession] = useState("");
  const action = useAction();
  const others = step.editable.filter((/** @type {string} */ kind) => !IN_PLACE.includes(kind));
  const { label, rows, value } = draft ? editOf(step.kind, draft.kind) : { label: "", rows: 0, value: String };
  const below = draft && !IN_PLACE.includes(draft.kind);
  const body = {
    at: step.step,
    ...(draft && { edit: { [draft.kind]: value(draft.text) } }),
    ...(session && { session }),
  };
  const goOn = () =>
    action.run(async () => {
      const made = await post(`/v1/${page}/${encodeURIComponent(id)}/fork`, body, crypto.randomUUID?.());
      setDraft(null);
      go(link([page, made.run_id || made.task_id]));
    });
  const before = step.step - 1;
  return html`<section class="card" aria-label="Fork">
    <div class="title"><h2>Fork</h2><span class="muted">${before ? `${before === 1 ? "Step 1 is" : `Steps 1 to ${before} are`} read from the recording: no model call, no effect.` : "It begins with this step."}</span></div>
    <div class="pane">
      <div class="group" role="group" aria-label="What to change">${others.map((/** @type {string} */ kind) => html`
        <button type="button" aria-pressed=${draft?.kind === kind} onClick=${() => begin(kind)}>${editOf(step.kind, kind).label}</button>`)}</div>
      ${below && rows === 1 && html`<label class="field"><span>${page === "tasks" ? "Model: a name, or adapter:name" : "Model: a name of the same provider, provider:name, or a block of provider, model and parameters"}</span>
        <input value=${draft.text} onInput=${(/** @type {any} */ event) => write(event.target.value)} /></label>`}
      ${below && rows > 1 && html`<label class="field"><span>${label}</span><${Field} label=${label} rows=${rows} text=${draft.text} write=${write} /></label>`}
      ${draft?.kind === "manifest" && html`<p>The fork goes on with the ${page === "tasks" ? "workflow" : "agent"} as it is configured now.</p>`}
      <p class="muted">Tools that write answer from the recording while their arguments stay the same; else the fork waits for approval.</p>
      <${Refusal} problem=${action.problem} />
      <div class="row group">
        <button type="button" class="primary" disabled=${action.busy || (draft && !draft.text.trim())} onClick=${goOn}>${draft ? "Run on from here" : `Run on from step ${step.step}`}</button>
        ${draft && html`<button type="button" onClick=${() => setDraft(null)}>Discard</button>`}
        <span class="grow"></span>
        ${page === "runs" && html`<${Select} label="Write turns to" value=${session} options=${SESSIONS} onChange=${setSession} />`}
      </div>
    </div>
  </section>`;
}

/** Makes a run again from its record, and shows the first difference. @param {string} run */
export function useReplay(run) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const action = useAction();
  const start = () => action.run(async () => setFound(await post(`/v1/runs/${encodeURIComponent(run)}/replay`)));
  useEffect(() => setFound(null), [run]);
  return { found, problem: action.problem, busy: action.busy, start, close: () => setFound(null) };
}
