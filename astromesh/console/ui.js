// @ts-check
// Small parts of pages: states, times, numbers, tables, JSON, dialogs, long lists.
import { asCurl, asPython, Problem } from "./api.js";
import { wordDiff } from "./diff.js";
import { html, signal, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./lib.js";
import { link } from "./router.js";

// -- states ------------------------------------------------------------------------------------------------

/** @type {Record<string, string>} the look of each state; anything else is plain */
const LOOKS = {
  completed: "ok", ready: "ok", ok: "ok", closed: "ok", success: "ok", done: "ok", approve: "ok", active: "ok",
  running: "run", queued: "run", answering: "run", in_progress: "run", half_open: "warn",
  waiting: "wait", paused: "wait", unknown: "wait",
  cancelled: "warn", partial: "warn", warning: "warn", refused: "warn", skipped: "warn", not_ready: "warn", expired: "warn", revoked: "warn", degraded: "warn",
  failed: "bad", failure: "bad", broken: "bad", open: "bad", error: "bad", unavailable: "bad", deny: "bad",
};

/** A state: a colour, and always its word. @param {{state: string, text?: string}} props */
export const Pill = ({ state, text }) => html`<span class="pill ${LOOKS[state] || ""}">${text || state}</span>`;

// -- times and numbers -------------------------------------------------------------------------------------

const now = signal(Date.now());
setInterval(() => document.hidden || (now.value = Date.now()), 5_000);
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
/** @type {[number, string][]} */
const UNITS = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

/** Milliseconds since the epoch, of an ISO time or of seconds. @param {string | number | null | undefined} value */
export function msOf(value) {
  if (value === null || value === undefined || value === "") return NaN;
  return typeof value === "number" ? value * 1000 : Date.parse(value);
}

/** @param {number} seconds */
function rough(seconds) {
  const [size, unit] = UNITS.find(([size]) => seconds >= size) || [1, "s"];
  return `${Math.floor(seconds / size)} ${unit}`;
}

/** A time, relative; exact on hover. @param {{at: string | number | null | undefined}} props */
export function Ago({ at }) {
  const ms = msOf(at);
  if (Number.isNaN(ms)) return html`<span class="muted">–</span>`;
  const seconds = (now.value - ms) / 1000;
  const text = Math.abs(seconds) < 5 ? "now" : seconds > 0 ? `${rough(seconds)} ago` : `in ${rough(-seconds)}`;
  return html`<time datetime=${new Date(ms).toISOString()} title=${exact.format(ms)}>${text}</time>`;
}

/** A duration in milliseconds. @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1)} s`;
  return rough(ms / 1000);
}

const whole = new Intl.NumberFormat("en");
/** @param {number | null | undefined} value */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));
/** @param {number | null | undefined} usd */
export const cost = (usd) => (usd === null || usd === undefined ? "–" : `$${usd.toFixed(usd && usd < 1 ? 4 : 2)}`);
/** @param {any} usage */
export const tokens = (usage) => (usage ? (usage.input_tokens || 0) + (usage.output_tokens || 0) : undefined);

// -- text --------------------------------------------------------------------------------------------------

/** Control characters and marks that change the direction of text, which would make it look like something else. */
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;
/** Text of others, with what nobody sees made visible. @param {unknown} value */
export function plain(value) {
  return String(value ?? "").replace(UNSEEN, (one) => `␦${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** The beginning of a text, on one line. @param {unknown} value @param {number} [length] */
export function brief(value, length = 160) {
  const text = plain(value).replace(/\s+/g, " ").trim();
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

/** The beginning of a Markdown text, without its marks. @param {unknown} value @param {number} [length] */
export const briefMarkdown = (value, length) => brief(String(value ?? "").replace(/\*\*|__|`|^#+ /gm, ""), length);

/** The passages that an answer draws on, each with a link to its document.
 * @param {{of: any[] | undefined}} props */
export function Citations({ of }) {
  if (!of?.length) return null;
  return html`<ol class="citations" aria-label="Sources">${of.map((one, at) => html`
    <li key=${at}><a class="link" ...${sourceOf(one)}>${plain(one.title || one.document)}</a>
      <span class="muted"> ${one.title ? `${plain(one.document)} · ` : ""}${Number(one.score ?? 0).toFixed(2)}</span>
      <span class="muted passage">${briefMarkdown(one.passage, 200)}</span></li>`)}</ol>`;
}

/** Where a citation leads: to its web page, else to the page of its document here. @param {any} one */
function sourceOf({ url = "", start, end }) {
  if (/^https?:\/\//.test(url)) return { href: url, target: "_blank", rel: "noreferrer" };
  const [, pipeline = "", document = ""] = url.match(/^\/v1\/rag\/([^/]+)\/documents\/(.+)$/) || [];
  return { href: link(["knowledge"], { pipeline: decodeURIComponent(pipeline), document: decodeURIComponent(document), start, end }) };
}

/** An id, shortened in the middle; a click copies it whole. @param {{id: string, href?: string}} props */
export function Id({ id, href }) {
  const text = plain(id.length > 22 ? `${id.slice(0, 9)}…${id.slice(-6)}` : id);
  return href
    ? html`<a class="mono link" href=${href} title=${plain(id)}>${text}</a>`
    : html`<${Copy} text=${id} label=${text} class="mono" />`;
}

/** Copies a text. @param {{text: string | (() => string), label: string, class?: string}} props */
export function Copy({ text, label, class: look = "" }) {
  const [outcome, setOutcome] = useState("");
  const copy = async (/** @type {any} */ event) => {
    const button = event.currentTarget;
    const done = await toClipboard(typeof text === "function" ? text() : text, button).then(() => true, () => false);
    setOutcome(done ? "Copied" : "Not copied");
    setTimeout(() => setOutcome(""), 1200);
  };
  return html`<button type="button" class="quiet copy ${look}" title="Copy" onClick=${copy}>
    ${outcome || label}
  </button>`;
}

/** Copies a text. Browsers have `navigator.clipboard` at https and at localhost only; elsewhere a chosen text is copied.
 * @param {string} text @param {HTMLElement} button */
async function toClipboard(text, button) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const box = document.createElement("textarea");
  box.value = text;
  button.after(box); // beside the button: a dialog lets nothing outside of it have the focus
  box.select();
  const done = document.execCommand("copy");
  box.remove();
  button.focus();
  if (!done) throw new Error("The browser does not copy.");
}

/** The request behind a view, for a shell and for Python. @param {{method?: string, path: string, body?: any}} props */
export const CopyRequest = ({ method = "GET", path, body }) => html`
  <span class="group">
    <${Copy} label="Copy as curl" text=${() => asCurl(method, path, body)} />
    <${Copy} label="as Python" text=${() => asPython(method, path, body)} />
  </span>`;

const LONGEST_TEXT = 20_000;
/** A value as JSON, or a text as it is; long ones open when asked. @param {{value: any}} props */
export function Json({ value }) {
  const [open, setOpen] = useState(false);
  const text = plain(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
  if (open || text.length <= LONGEST_TEXT) return html`<pre tabindex="0">${text}</pre>`;
  return html`<pre tabindex="0">${text.slice(0, LONGEST_TEXT)}…</pre>
    <button type="button" onClick=${() => setOpen(true)}>Show all ${count(text.length)} characters</button>`;
}

/** Two texts side by side, with what is gone in the one and new in the other.
 * @param {{before: string, after: string, names: [string, string]}} props */
export function Difference({ before, after, names }) {
  const parts = useMemo(() => wordDiff(plain(before), plain(after)), [before, after]);
  /** @type {["removed" | "added", string][]} */
  const sides = [["removed", names[0]], ["added", names[1]]];
  return html`<div class="sides">${sides.map(([kind, name]) => html`
    <div class="msg diff"><div class="who">${plain(name)}</div><pre class="what" tabindex="0">${parts.map((part) =>
      part.kind === "same" ? part.text : part.kind === kind ? (kind === "added" ? html`<ins>${part.text}</ins>` : html`<del>${part.text}</del>`) : "")}</pre></div>`)}</div>`;
}

/** What is wrong with the configuration, and what to do. @param {{message: string, hint?: string}} fault */
export const faultText = ({ message, hint }) => plain(hint ? `${message.replace(/\.$/, "")}. ${hint}` : message);

// -- parts of a page ---------------------------------------------------------------------------------------

/** The head of a page: where you are, its state, and what can be done. @param {{trail?: any[], title: any, children?: any}} props */
export const Head = ({ trail = [], title, children }) => html`
  <header>
    ${trail.map(([text, href]) => html`<a class="muted" href=${href}>${text}</a><span class="muted">/</span>`)}
    <h1>${title}</h1>
    ${children}
  </header>`;

/** @param {{title: any, more?: any, class?: string, children?: any}} props */
export const Card = ({ title, more, class: look = "", children }) => html`
  <section class="card ${look}">
    <div class="title"><h2>${title}</h2><span class="grow"></span>${more}</div>
    ${children}
  </section>`;

/** One fact of a row of facts. @param {{name: string, children?: any}} props */
export const Fact = ({ name, children }) => html`<div class="num"><span>${name}</span>${children}</div>`;

/** Nothing to show, and what fills it. @param {{children?: any, command?: string}} props */
export const Empty = ({ children, command }) => html`
  <div class="empty"><p>${children}</p>${command && html`<pre tabindex="0">${command}</pre><${Copy} text=${command} label="Copy" />`}</div>`;

/** What the server refused, and its next step. @param {{problem: Problem | null}} props */
export const Refusal = ({ problem }) =>
  problem && html`<div class="refusal" role="alert"><b>${problem.code || "no answer"}</b> ${plain(problem.message)}</div>`;

/** Why a run, a Task or a case has failed. @param {{error: any}} props */
export const Failure = ({ error }) =>
  error && html`<div class="refusal" role="alert"><b>${plain(error.code)}</b> ${error.stage ? `${plain(error.stage)}: ` : ""}${plain(error.detail || error.message)}</div>`;

/** A question to a person, which stands among the approvals. @param {{of: any}} props */
export const Waits = ({ of }) => html`<div class="ask waits"><b>Waits for a person:</b> ${plain(of.question || of.name)} ·${" "}
  <a class="link" href=${link(["approvals"], { run: of.task_id ? `${of.task_id}/${of.id}` : of.run_id })}>Open the question</a></div>`;

/** A table. @param {{head: (string | [string, string])[], rows: any, label: string}} props a pair has the class of its column */
export const Table = ({ head, rows, label }) => html`
  <div class="scroll" tabindex="0" role="region" aria-label=${label}>
    <table>
      <thead><tr>${head.map((one) => {
        const [text, look] = Array.isArray(one) ? one : [one, ""];
        return html`<th scope="col" class=${look}>${text}</th>`;
      })}</tr></thead>
      <tbody>${rows}</tbody>
    </table>
  </div>`;

/** Choices of one list; a chosen value that it lacks stands in it, too: an address may name anything. @param {{label: string, value: string, options: (string | [string, string])[], onChange: (value: string) => void}} props */
export const Select = ({ label, value, options, onChange }) => html`
  <label class="field"><span>${label}</span>
    <select value=${value} onChange=${(/** @type {any} */ event) => onChange(event.target.value)}>
      ${[...(options.some((one) => [one].flat()[0] === value) ? [] : [value]), ...options].map((one) => {
        const [option, text] = Array.isArray(one) ? one : [one, plain(one)];
        return html`<option value=${option} selected=${option === value}>${text}</option>`;
      })}
    </select>
  </label>`;

/** Tabs; the chosen one stands in the address. @param {{tabs: string[], chosen: string, onChoose: (tab: string) => void, children?: any}} props */
export const Tabs = ({ tabs, chosen, onChoose, children }) => html`
  <div class="tabs">
    ${tabs.map((tab) => html`<button type="button" class="tab" aria-pressed=${tab === chosen} onClick=${() => onChoose(tab)}>${tab}</button>`)}
    <span class="grow"></span>${children}
  </div>`;

/** Runs an action once at a time, and shows what the server refuses. */
export function useAction() {
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState(/** @type {Problem | null} */ (null));
  /** @param {() => Promise<any>} act */
  const run = async (act) => {
    if (busy) return;
    setBusy(true);
    setProblem(null);
    try {
      await act();
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem(0, { detail: String(error) }));
    }
    setBusy(false);
  };
  return { busy, problem, run };
}

/** A button that asks once before it does what cannot be undone.
 * @param {{label: string, question: string, onYes: () => void, disabled?: boolean}} props */
export function Confirm({ label, question, onYes, disabled }) {
  const [asking, setAsking] = useState(false);
  const yes = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (asking) yes.current?.focus();
  }, [asking]);
  if (!asking) return html`<button type="button" disabled=${disabled} onClick=${() => setAsking(true)}>${label}</button>`;
  return html`<span class="group" role="group" aria-label=${question}>
    <span>${question}</span>
    <button type="button" class="danger" ref=${yes} onClick=${() => (setAsking(false), onYes())}>${label}</button>
    <button type="button" onClick=${() => setAsking(false)}>Keep</button>
  </span>`;
}

/** A dialog over the page. @param {{title: string, onClose: () => void, children?: any}} props */
export function Dialog({ title, onClose, children }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useLayoutEffect(() => {
    element.current?.showModal();
  }, []);
  return html`<dialog ref=${element} aria-label=${title} onClose=${onClose}>
    <div class="title"><h2>${title}</h2><span class="grow"></span>
      <button type="button" class="quiet" onClick=${() => element.current?.close()}>Close</button></div>
    ${children}
  </dialog>`;
}

/**
 * A long list that draws only the rows in view. All rows have one height.
 * @param {{count: number, height: number, row: (at: number) => any, label: string, chosen?: number}} props
 */
export function LongList({ count: size, height, row, label, chosen = -1 }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [view, setView] = useState({ top: 0, rows: 60 });
  const look = () => {
    const box = element.current;
    if (!box) return;
    const next = { top: Math.max(0, Math.floor(box.scrollTop / height) - 10), rows: Math.ceil(box.clientHeight / height) + 20 };
    setView((old) => (old.top === next.top && old.rows === next.rows ? old : next));
  };
  useEffect(() => {
    look();
    const observer = new ResizeObserver(look);
    if (element.current) observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  useLayoutEffect(() => {
    const box = element.current;
    if (!box || chosen < 0) return;
    if (chosen * height < box.scrollTop) box.scrollTop = chosen * height;
    else if ((chosen + 1) * height > box.scrollTop + box.clientHeight) box.scrollTop = (chosen + 1) * height - box.clientHeight;
  }, [chosen]);
  const first = Math.min(view.top, Math.max(0, size - view.rows)); // the list may have become shorter
  const last = Math.min(size, first + view.rows);
  const rows = [];
  for (let at = first; at < last; at++) rows.push(row(at));
  return html`<div class="long" ref=${element} onScroll=${look} tabindex="0" role="region" aria-label=${label}>
    <div style=${{ height: `${first * height}px` }}></div>
    ${rows}
    <div style=${{ height: `${Math.max(0, size - last) * height}px` }}></div>
  </div>`;
}
