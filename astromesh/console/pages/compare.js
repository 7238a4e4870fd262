// @ts-check
// Two or three runs side by side: their numbers and answers, their steps aligned, and what differs by word.
import { html, useEffect, useMemo, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { Markdown } from "../markdown.js";
import { useResource } from "../poll.js";
import { textOf } from "../recording.js";
import { link, place, refine } from "../router.js";
import { CopyRequest, cost, count, Difference, duration, Empty, Fact, Head, Id, Pill, plain, Refusal, tokens } from "../ui.js";

const LETTERS = /** @type {const} */ (["a", "b", "c"]);

export default function Compare() {
  const { a = "", b = "", c = "" } = place.value.query;
  const path = `/v1/runs/compare?${new URLSearchParams(Object.entries({ a, b, c }).filter(([, value]) => value))}`;
  const found = useResource(a && b ? path : "", { live: false });
  const { runs, steps, divergence } = found.value || {};
  const rows = useMemo(() => fold(steps || []), [steps]);
  const differing = rows.filter((row) => !row.equal);
  const first = differing[0];
  const [open, setOpen] = useState(/** @type {number | null} */ (null));
  const shown = open ?? first?.at ?? -1;
  const next = () => differing.length && setOpen((differing.find((row) => row.at > shown) || differing[0]).at);
  useKeys([["n", "Next difference", next]]);
  useEffect(() => {
    if (shown >= 0) document.getElementById(`row-${shown}`)?.scrollIntoView({ block: "nearest" });
  }, [shown]);
  const letters = LETTERS.filter((letter) => runs?.[letter]);
  const look = letters.length > 2 ? "three" : "";
  return html`
    <${Head} trail=${[["Runs", link(["runs"])]]} title="Compare"><span class="grow"></span>
      ${divergence && html`<span class="muted">first difference: ${plain(divergence.kind)} ${plain(divergence.name)}, step ${divergence.a?.step ?? divergence.b?.step ?? "–"}</span>`}
      ${differing.length > 0 && html`<button type="button" onClick=${next}>Next difference <kbd>n</kbd></button>`}
      ${a && b && html`<${CopyRequest} path=${path} />`}<//>
    <${Chooser} a=${a} b=${b} c=${c} />
    <${Refusal} problem=${found.problem} />
    ${!(a && b) && html`<${Empty}>Choose two runs, or three. A fork of a run, which a button at each recorded step makes, is the best one to compare with.<//>`}
    ${found.loading && html`<p class="muted pad">Loading.</p>`}
    ${runs && html`
      <div class=${`cmp ${look}`}>${letters.map((letter) => html`<${Side} key=${letter} letter=${letter} run=${runs[letter]} base=${letter === "a" ? null : runs.a} />`)}</div>
      ${!first && html`<p class="pad"><${Pill} state="ok" text="identical" /> All ${count(steps.length)} steps have the same content.</p>`}
      ${rows.map((row) => html`<${Row} key=${row.at} row=${row} letters=${letters} runs=${runs} isFirst=${row === first} isOpen=${row.at === shown} onOpen=${() => setOpen(row.at === shown ? -1 : row.at)} />`)}`}`;
}

/** Stretches of equal steps become one row. @param {any[]} steps @returns {{at: number, equal: boolean, steps: any[]}[]} */
function fold(steps) {
  /** @type {{at: number, equal: boolean, steps: any[]}[]} */
  const rows = [];
  steps.forEach((step, at) => {
    const last = rows[rows.length - 1];
    if (step.equal && last?.equal) last.steps.push(step);
    else rows.push({ at, equal: step.equal, steps: [step] });
  });
  return rows;
}

/** Which runs: those of one agent, newest first, or any by its id. @param {{a: string, b: string, c: string}} props */
function Chooser(props) {
  const one = useResource(props.a ? `/v1/runs/${encodeURIComponent(props.a)}` : "", { live: false });
  const agent = one.value?.agent || "";
  const others = useResource(agent ? `/v1/runs?limit=50&agent=${encodeURIComponent(agent)}` : "", { live: false });
  const known = (others.value?.runs || []).filter((/** @type {any} */ run) => run.finished_at);
  return html`<div class="filters">${LETTERS.map((letter) => html`
    <label class="field wide-field" key=${letter}><span>${letter === "a" ? "The run" : letter === "b" ? "compared with" : "and with (optional)"}</span>
      <input list="known-runs" class="mono" placeholder="run_…" value=${props[letter]} onChange=${(/** @type {any} */ event) => refine({ [letter]: event.target.value.trim() })} /></label>`)}
    <datalist id="known-runs">${known.map((/** @type {any} */ run) => html`<option value=${run.run_id}>${run.forked_from ? `fork of ${run.forked_from.run_id} at step ${run.forked_from.step}` : plain(run.session_id)}</option>`)}</datalist>
    ${agent && !props.b && known.filter((/** @type {any} */ run) => run.run_id !== props.a).slice(0, 4).map((/** @type {any} */ run) => html`
      <button type="button" key=${run.run_id} onClick=${() => refine({ b: run.run_id })}>${run.forked_from?.run_id === props.a ? `its fork at step ${run.forked_from.step}` : `…${run.run_id.slice(-6)}`}</button>`)}
  </div>`;
}

/** A number, and how much more or less it is than that of the first run. @param {{value: number | null, base: number | null | undefined, text: string}} props */
function Compared({ value, base, text }) {
  const change = base && value !== null ? Math.round((100 * (value - base)) / base) : 0;
  return html`${text}${change ? html` <span class=${change < 0 ? "less" : "more"}>${change > 0 ? "+" : "−"}${Math.abs(change)} %</span>` : ""}`;
}

/** @param {{letter: string, run: any, base: any}} props */
function Side({ letter, run, base }) {
  const used = tokens(run.usage) || 0;
  return html`<div>
    <div class="title-row"><b>${letter.toUpperCase()}</b><${Id} id=${run.run_id} href=${link(["runs", run.run_id])} /><${Pill} state=${run.status} /><span class="muted">${plain(run.agent)}</span></div>
    <div class="facts">
      <${Fact} name="Duration"><${Compared} value=${run.latency_ms} base=${base?.latency_ms} text=${duration(run.latency_ms)} /><//>
      <${Fact} name="Tokens"><${Compared} value=${used} base=${base && tokens(base.usage)} text=${count(used)} /><//>
      <${Fact} name="Cost"><${Compared} value=${run.usage.cost_usd} base=${base?.usage.cost_usd} text=${cost(run.usage.cost_usd)} /><//>
      <${Fact} name="Model calls">${count(run.model_calls)}<//><${Fact} name="Tool calls">${count(run.tool_calls)}<//>
    </div>
    <div class="msg"><div class="who">answer</div><div class="what">${run.response ? html`<${Markdown} text=${run.response} />` : html`<span class="muted">none</span>`}</div></div>
  </div>`;
}

/** @param {{row: any, letters: readonly string[], runs: any, isFirst: boolean, isOpen: boolean, onOpen: () => void}} props */
function Row({ row, letters, runs, isFirst, isOpen, onOpen }) {
  const [step] = row.steps;
  const last = row.steps[row.steps.length - 1];
  const look = `row-of-steps ${letters.length > 2 ? "three" : ""} ${row.equal ? "same" : ""} ${isFirst ? "first" : isOpen ? "on" : ""}`;
  if (row.equal) {
    return html`<div class=${look}><button type="button" aria-expanded=${isOpen} onClick=${onOpen}>
        <span>${row.steps.length === 1 ? "1 step" : `${count(row.steps.length)} steps`} · the same</span>
        ${letters.map((letter) => html`<span class="num">${step[letter]?.step}${last !== step ? `–${last[letter]?.step}` : ""}</span>`)}</button>
      ${isOpen && html`<div class="pane">${row.steps.map((/** @type {any} */ one) => html`<span><b>${plain(one.kind)}</b> ${plain(one.name)} <span class="mono">${plain(one.path)}</span></span>`)}</div>`}</div>`;
  }
  return html`<div class=${look} id=${`row-${row.at}`}>
    <button type="button" aria-expanded=${isOpen} onClick=${onOpen}>
      <span><b>${plain(step.kind)}</b> ${plain(step.name)}${isFirst ? html` <b class="warn-text">first difference</b>` : ""}</span>
      ${letters.map((letter) => html`<span class="num">${step[letter] ? `${step[letter].step} · ${duration(step[letter].duration_ms)}${step[letter].usage ? ` · ${count(tokens(step[letter].usage))} tokens` : ""}` : "not reached"}</span>`)}
    </button>
    ${isOpen && html`<div class="pane">${letters.slice(1).map((letter) => html`<${StepDifference} key=${letter} letter=${letter} step=${step} a=${runs.a.run_id} other=${runs[letter].run_id} />`)}</div>`}
  </div>`;
}

/** What a step read and wrote in two runs. @param {{letter: string, step: any, a: string, other: string}} props */
function StepDifference({ letter, step, a, other }) {
  const before = useContent(a, step.a?.step);
  const after = useContent(other, step[letter]?.step);
  if (before === null || after === null) return html`<p class="muted">Loading.</p>`;
  return html`<${Difference} names=${[`A${step.a ? ` · step ${step.a.step}` : ""}`, `${letter.toUpperCase()}${step[letter] ? ` · step ${step[letter].step}` : ""}`]} before=${before} after=${after} />`;
}

/** The input and output of a step as text; empty where a run lacks it, null while it is asked for. @param {string} run @param {number | undefined} number */
function useContent(run, number) {
  const found = useResource(number ? `/v1/runs/${encodeURIComponent(run)}/steps/${number}` : "", { live: false });
  if (!number) return "not reached";
  if (!found.value) return found.problem ? plain(found.problem.message) : null;
  return legible(contentOf(found.value));
}

/** What a step read and wrote; of a tool's result, what the model received. @param {any} step */
function contentOf({ kind, input, output }) {
  return kind === "tool" && output ? { arguments: input?.arguments, result: output.content ?? output.value, error: output.error || undefined } : { input, output };
}

/** JSON with the line breaks and quotes of its texts as a reader knows them. @param {any} value */
const legible = (value) => textOf(value).replaceAll('\\\\\\"', '"').replaceAll('\\"', '"').replaceAll("\\\\n", "\n").replaceAll("\\n", "\n");
