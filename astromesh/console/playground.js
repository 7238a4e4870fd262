// @ts-check
// The playground of an agent: one question, and what another system message or model makes of it. Each try is a fork of the
// first run at its prompt, so nothing of the agent is changed, and only the first question writes a session.
import { follow, get, post } from "./api.js";
import { html, useEffect, useRef, useState } from "./lib.js";
import { Markdown } from "./markdown.js";
import { messagesOf, valueOf } from "./recording.js";
import { link } from "./router.js";
import { isEnd } from "./steps.js";
import { cost, count, duration, Empty, Failure, Id, msOf, Pill, plain, Refusal, tokens, useAction } from "./ui.js";

/** @param {{name: string}} props */
export function Playground({ name }) {
  const [question, setQuestion] = useState("");
  const [first, setFirst] = useState(/** @type {any} */ (null));
  const [system, setSystem] = useState("");
  const [model, setModel] = useState("");
  const [tries, setTries] = useState(/** @type {any[]} */ ([]));
  const action = useAction();
  const left = useRef(new AbortController());
  useEffect(() => () => left.current.abort(), []);
  /** @param {string} id @returns {Promise<any>} the run, when it has ended or waits for a person */
  const ended = async (id) => {
    await follow(`/v1/runs/${id}/events`, () => {}, left.current.signal, { isLast: (type) => isEnd(type) || type === "run.waiting" });
    return get(`/v1/runs/${id}`);
  };
  const ask = () =>
    action.run(async () => {
      setTries([]);
      const made = await post(`/v1/agents/${encodeURIComponent(name)}/runs`, { query: question, session_id: `playground-${crypto.randomUUID?.() || Date.now()}` });
      const run = await ended(made.run_id);
      const { steps } = await get(`/v1/runs/${made.run_id}/steps`);
      const at = steps.find((/** @type {any} */ step) => step.kind === "prompt")?.step;
      const prompt = at && (await get(`/v1/runs/${made.run_id}/steps/${at}`));
      setSystem(prompt ? messagesOf(prompt).find((/** @type {any} */ one) => one.role === "system")?.content ?? "" : "");
      setFirst({ run, at: at ?? 1 });
    });
  const attempt = (/** @type {string} */ label, /** @type {any} */ edit) =>
    action.run(async () => {
      const made = await post(`/v1/runs/${first.run.run_id}/fork`, { at: first.at, edit });
      const run = await ended(made.run_id);
      setTries((known) => [{ label, run }, ...known]);
    });
  return html`<div class="pane">
    <form class="question" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), ask())}>
      <label class="field wide-field"><span>Question</span><input required value=${question} onInput=${(/** @type {any} */ event) => setQuestion(event.target.value)} /></label>
      <button class="primary" disabled=${action.busy || !question.trim()}>Ask</button>
    </form>
    <${Refusal} problem=${action.problem} />
    ${action.busy && html`<p class="muted" role="status">The agent answers.</p>`}
    ${!first && !action.busy && html`<${Empty}>Ask the agent as it is. Then try another system message or another model on the same question: nothing is saved in its file.<//>`}
    ${first && html`
      <div class="sides">
        <section class="card" aria-label="What to change"><div class="title"><h2>What to change</h2></div><div class="pane">
          <label class="field"><span>System message</span><textarea class="mono" rows="8" value=${system} onInput=${(/** @type {any} */ event) => setSystem(event.target.value)}></textarea></label>
          <div><button type="button" disabled=${action.busy || !system.trim()} onClick=${() => attempt("Another system message", { system })}>Try this system message</button></div>
          <label class="field"><span>Model: a name of the same provider, provider:name, or a block of provider, model and parameters</span><input value=${model} onInput=${(/** @type {any} */ event) => setModel(event.target.value)} /></label>
          <div><button type="button" disabled=${action.busy || !model.trim()} onClick=${() => attempt(`Model ${model}`, { model: valueOf(model) })}>Try this model</button></div>
          <p class="muted">One change at a time. Tools that only read run live; others answer from the recording, or the try waits for approval.</p>
        </div></section>
        <${Try} label="The agent as it is" run=${first.run} />
      </div>
      <div class="sides">${tries.map(({ label, run }) => html`<${Try} key=${run.run_id} label=${label} run=${run} first=${first.run.run_id} />`)}</div>`}
  </div>`;
}

/** @param {{label: string, run: any, first?: string}} props */
const Try = ({ label, run, first = "" }) => html`<section class="card" aria-label=${plain(label)}>
  <div class="title"><h2>${plain(label)}</h2><${Pill} state=${run.status} /><span class="grow"></span>
    ${first && html`<a class="link" href=${link(["compare"], { a: first, b: run.run_id })}>Compare</a>`}<${Id} id=${run.run_id} href=${link(["runs", run.run_id])} /></div>
  <div class="pane"><p class="muted num">${duration(msOf(run.finished_at) - msOf(run.created_at))} · ${count(tokens(run.usage))} tokens · ${cost(run.usage?.cost_usd)}</p>
    ${run.error ? html`<${Failure} error=${run.error} />` : html`<${Markdown} text=${run.result?.response || ""} />`}</div>
</section>`;
