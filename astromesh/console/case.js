// @ts-check
// Makes a case for a dataset of a run or Task that has ended: shown first, written if the reader says so.
import { post } from "./api.js";
import { html, useState } from "./lib.js";
import { count, Dialog, plain, Refusal, useAction } from "./ui.js";

/** @param {{id: string}} props of the run or Task */
export function MakeCase({ id }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const action = useAction();
  const ask = (/** @type {boolean} */ write) =>
    action.run(async () => setFound(await post(`/v1/runs/${encodeURIComponent(id)}/case`, { write })));
  const calls = found?.recording?.calls || found?.recording?.stages;
  return html`
    <button type="button" disabled=${action.busy} onClick=${() => ask(false)}>Make a case</button>
    ${!found && action.problem && html`<span class="bad-text" role="alert">${plain(action.problem.message)}</span>`}
    ${found && html`<${Dialog} title="A case for a dataset" onClose=${() => setFound(null)}><div class="pane">
      <p>${found.written ? "Written to" : "This would be added to"} <b class="mono">evals/${plain(found.dataset)}</b>.
        ${calls && ` Its recording has ${count(calls.length)} ${found.recording.calls ? "model calls" : "stages"}.`} ${plain(found.note)}</p>
      <pre tabindex="0">${plain(found.added)}</pre>
      <${Refusal} problem=${action.problem} />
      ${!found.written && html`<div><button type="button" disabled=${action.busy} onClick=${() => ask(true)}>Write it</button></div>`}
    </div><//>`}`;
}
