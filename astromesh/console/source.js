// @ts-check
// The YAML of an agent: as the server has loaded it, with its faults at their lines, and the versions that runs had.
import { html, useState } from "./lib.js";
import { useResource } from "./poll.js";
import { Ago, Card, count, Difference, Empty, faultText, Pill, plain, Refusal, Table } from "./ui.js";

/** @param {{path: string}} props of the manifest's route */
export function Source({ path }) {
  const found = useResource(path, { live: false });
  const [older, setOlder] = useState(/** @type {any} */ (null));
  const { file, source, faults = [], versions = [] } = found.value || {};
  if (found.problem) return html`<${Refusal} problem=${found.problem} />`;
  if (!found.value) return html`<p class="muted pad">Loading.</p>`;
  return html`<div class="pane">
    ${faults.map((/** @type {any} */ one, /** @type {number} */ at) => html`<div class="note" key=${at}><p><${Pill} state=${one.severity} />
      <span class="mono">${plain([one.file, one.line, one.column].filter(Boolean).join(":"))}${one.key ? ` · ${plain(one.key)}` : ""}</span></p><p>${faultText(one)}</p></div>`)}
    ${source
      ? html`<${Card} title=${plain(file)} more=${html`<span class="muted">${faults.length ? "" : "no fault · "}as it was loaded</span>`}><${Lines} text=${source} faults=${faults} /><//>`
      : html`<${Empty}>This agent is declared in Python and has no YAML.<//>`}
    ${versions.length > 0 && html`<${Card} title="Versions seen"><${Table} label="Versions seen" head=${["Version", ["Runs", "r"], ["First run", "r"], ["Last run", "r"], ["Action", "r"]]} rows=${versions.map((/** @type {any} */ one, /** @type {number} */ at) => html`
      <tr key=${at}><td>${one.source === source ? html`<${Pill} state="ok" text="present" />` : html`<span class="muted">${count(versions.length - at)}</span>`}</td><td class="r num">${count(one.runs)}</td>
        <td class="r"><${Ago} at=${one.first_run_at} /></td><td class="r"><${Ago} at=${one.last_run_at} /></td>
        <td class="r">${one.source !== source && html`<button type="button" aria-pressed=${older === one} onClick=${() => setOlder(older === one ? null : one)}>Compare</button>`}</td></tr>`)} /><//>`}
    ${older && html`<${Difference} before=${older.source} after=${source} names=${["that version", "present"]} />`}
  </div>`;
}

/** Numbered lines, with a mark where a fault stands. @param {{text: string, faults: any[]}} props */
function Lines({ text, faults }) {
  const marked = new Set(faults.map((one) => one.line));
  return html`<pre class="source" tabindex="0">${text.split("\n").map((line, at) => html`<span class=${marked.has(at + 1) ? "bad-line" : ""}><i>${at + 1}</i>${plain(line)}</span>`)}</pre>`;
}
