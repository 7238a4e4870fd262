// @ts-check
// Runs: newest first, by agent, status, session, tag, time, cost and duration; new ones wait behind a button.
import { html, useEffect, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Ago, brief, briefMarkdown, CopyRequest, cost, count, duration, Empty, Head, Id, msOf, Pill, plain, Refusal, Select, Table, tokens } from "../ui.js";

const STATES = ["", "queued", "running", "waiting", "completed", "failed", "cancelled"];

export default function Runs() {
  const { agent = "", status = "", session = "", tag = "", from = "", to = "", cost: least = "", seconds = "", limit = "50" } = place.value.query;
  const filters = {
    agent, status, session, tag, limit,
    created_after: instant(from), created_before: instant(to),
    min_cost_usd: least, min_duration_ms: seconds && String(Number(seconds) * 1000),
  };
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value)).toString();
  const path = `/v1/runs?${query}`;
  const found = useResource(path);
  const agents = useResource("/v1/agents", { live: false });
  const shown = useHeld(found.value?.runs, path);
  useKeys([["n", "Show new runs", shown.release]]);
  const names = (agents.value?.agents || []).map((/** @type {any} */ one) => one.name);
  return html`
    <${Head} title="Runs"><span class="grow"></span><${CopyRequest} path=${path} /><//>
    <div class="filters">
      <${Select} label="Agent" value=${agent} options=${[["", "all"], ...names]} onChange=${(/** @type {string} */ value) => refine({ agent: value })} />
      <${Select} label="Status" value=${status} options=${STATES.map((one) => [one, one || "all"])} onChange=${(/** @type {string} */ value) => refine({ status: value })} />
      <${Filter} label="Session" name="session" value=${session} />
      <${Filter} label="Tag" name="tag" value=${tag} />
      <${Filter} label="From" name="from" value=${from} type="datetime-local" />
      <${Filter} label="To" name="to" value=${to} type="datetime-local" />
      <${Filter} label="Cost from, US$" name="cost" value=${least} type="number" />
      <${Filter} label="Takes from, s" name="seconds" value=${seconds} type="number" />
      <${Select} label="Rows" value=${limit} options=${["50", "200", "1000"]} onChange=${(/** @type {string} */ value) => refine({ limit: value })} />
      <span class="grow"></span>
      ${found.value && html`<span class="muted num">All that match: ${count(tokens(found.value.usage))} tokens · ${cost(found.value.usage.cost_usd)}</span>`}
    </div>
    <${Refusal} problem=${found.problem} />
    ${shown.waiting > 0 && html`<button type="button" class="fresh" onClick=${shown.release}>${shown.waiting} new <kbd>n</kbd></button>`}
    ${found.loading
      ? html`<p class="muted pad">Loading.</p>`
      : shown.rows.length
        ? html`<${RunTable} runs=${shown.rows} />`
        : !found.problem && html`<${Empty} command=${`astromesh run ${agent || "AGENT"} "How do I get started?"`}>No run matches. A run appears here once an agent is asked.<//>`}`;
}

/** @param {{label: string, name: string, value: string, type?: string}} props */
const Filter = ({ label, name, value, type = "text" }) => html`
  <label class="field"><span>${label}</span><input type=${type} min="0" step="any" value=${value} onChange=${(/** @type {any} */ event) => refine({ [name]: event.target.value.trim() })} /></label>`;

/** A local time of a field as an instant; what is no time filters nothing. @param {string} local */
const instant = (local) => (isNaN(Date.parse(local)) ? "" : new Date(local).toISOString());

/** Holds back rows that are newer than those shown, until they are asked for. @param {any[] | undefined} rows @param {string} of */
function useHeld(rows, of) {
  const held = useRef(/** @type {{of: string, ids: Set<string>} | null} */ (null));
  const [, redraw] = useState(0);
  useEffect(() => {
    held.current = null;
  }, [of]);
  if (!rows) return { rows: [], waiting: 0, release: () => {} };
  if (!held.current || held.current.of !== of) held.current = { of, ids: new Set(rows.map((run) => run.run_id)) };
  const known = held.current.ids;
  const shown = rows.filter((run) => known.has(run.run_id));
  const release = () => {
    held.current = null;
    redraw((n) => n + 1);
  };
  return { rows: shown.length ? shown : rows, waiting: shown.length ? rows.length - shown.length : 0, release };
}

/** @param {{runs: any[], short?: boolean}} props */
export const RunTable = ({ runs, short = false }) => html`
  <${Table} label="Runs" head=${["Status", "Agent", "Answer or error", "Session", "Run", ["Tokens", "r"], ["Cost", "r"], ["Time", "r"], ["Started", "r"]]}
    rows=${runs.map((run) => html`
      <tr key=${run.run_id}>
        <td><a href=${link(["runs", run.run_id])}><${Pill} state=${run.status} /></a></td>
        <td><a class="link" href=${link(["agents", run.agent])}>${plain(run.agent)}</a></td>
        <td class="text">${run.error ? html`<span class="bad-text">${brief(`${run.error.code}: ${run.error.detail}`, short ? 60 : 110)}</span>` : briefMarkdown(run.result?.response || (run.waiting_for ? `waits for ${run.waiting_for.name}` : ""), short ? 60 : 110)}</td>
        <td class="mono"><a class="link" href=${link(["sessions", run.agent, run.session_id])} title=${plain(run.session_id)}>${brief(run.session_id, 18)}</a></td>
        <td><${Id} id=${run.run_id} href=${link(["runs", run.run_id])} /></td>
        <td class="r num">${count(tokens(run.usage))}</td>
        <td class="r num">${cost(run.usage?.cost_usd)}</td>
        <td class="r num">${run.finished_at ? duration(msOf(run.finished_at) - msOf(run.created_at)) : "–"}</td>
        <td class="r"><${Ago} at=${run.created_at} /></td>
      </tr>`)} />`;
