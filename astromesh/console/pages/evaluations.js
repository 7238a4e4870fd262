// @ts-check
// Evaluations: the newest reports of an agent or workflow in columns, what became worse, and the datasets.
import { get } from "../api.js";
import { columnsOf, mark, rowsOfCases } from "../evaluation.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { useResource } from "../poll.js";
import { chosenTab, link, place, refine } from "../router.js";
import { Ago, brief, Card, cost, CopyRequest, count, Empty, Head, Id, Pill, plain, Refusal, Select, Table, Tabs } from "../ui.js";

const TABS = ["Runs", "Datasets"];
const COLUMNS = 6;

export default function Evaluations() {
  const tab = chosenTab(TABS);
  const found = useResource(tab === "Datasets" ? "" : "/v1/evaluations?limit=200");
  const reports = found.value?.evaluations || [];
  const names = [...new Set(reports.map((/** @type {any} */ one) => String(one.name)))];
  const name = place.value.query.name || names[0] || "";
  const shown = reports.filter((/** @type {any} */ one) => one.name === name);
  return html`
    <${Head} title="Evaluations"><span class="grow"></span><${CopyRequest} path=${tab === "Datasets" ? "/v1/datasets" : "/v1/evaluations"} /><//>
    <${Tabs} tabs=${TABS} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    <${Refusal} problem=${found.problem} />
    ${tab === "Datasets" && html`<${Datasets} />`}
    ${tab === "Runs" && found.loading && html`<p class="muted pad">Loading.</p>`}
    ${tab === "Runs" && found.value && !reports.length && html`<${Empty} command="astromesh eval run AGENT">No evaluation has run here. A dataset in <code>evals/AGENT.yaml</code> holds cases; <b>Make a case</b> at a recorded run writes one.<//>`}
    ${tab === "Runs" && names.length > 0 && html`
      <div class="filters"><${Select} label="Agent or workflow" value=${name} options=${names} onChange=${(/** @type {string} */ value) => refine({ name: value })} />
        <span class="grow"></span><span class="muted">${count(shown.length)} ${shown.length === 1 ? "report" : "reports"}, newest first</span></div>
      <div class="pane"><${Matrix} key=${name} ids=${shown.slice(0, COLUMNS).map((/** @type {any} */ one) => one.evaluation_id)} />
      <${Card} title="Reports"><${Reports} reports=${shown} /><//></div>`}`;
}

/** Reports of one agent or workflow, newest first. @param {{reports: any[]}} props */
export const Reports = ({ reports }) => html`<${Table} label="Reports" head=${["Result", "Report", "Kind", ["Runs", "r"], ["Failed", "r"], ["Cost", "r"], "Stopped by", ["Started", "r"]]} rows=${reports.map((one, at) => html`
  <tr key=${one.evaluation_id}><td><${Pill} state=${one.passed ? "ok" : "failed"} text=${one.passed ? "passed" : "failed"} /></td>
    <td><${Id} id=${one.evaluation_id} href=${link(["evaluations", one.evaluation_id], { compare: reports[at + 1]?.evaluation_id })} /></td><td>${one.kind}</td>
    <td class="r num">${count(one.runs)}</td><td class="r num">${count(one.failed)}</td><td class="r num">${cost(one.cost_usd)}</td><td>${one.stopped ? "cost limit" : ""}</td><td class="r"><${Ago} at=${one.started_at} /></td></tr>`)} />`;

/** Cases by reports: how often each has passed, and where it became worse. @param {{ids: string[]}} props */
function Matrix({ ids }) {
  const [reports, setReports] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    let gone = false;
    Promise.all(ids.map((id) => get(`/v1/evaluations/${encodeURIComponent(id)}`).catch(() => null))).then((found) => gone || setReports(found.filter(Boolean)));
    return () => {
      gone = true;
    };
  }, [ids.join()]);
  const { columns, rows } = useMemo(() => {
    const columns = columnsOf(reports);
    return { columns, rows: rowsOfCases(columns) };
  }, [reports]);
  if (!reports.length) return html`<p class="muted pad">Loading the newest reports.</p>`;
  const worse = rows.filter((row) => row.marks[0] === "worse").length;
  const found = worse ? html`<${Pill} state="failed" text=${`${worse} worse than before`} />` : html`<${Pill} state="ok" text="no regression" />`;
  return html`<${Card} title="Cases" more=${columns.length > 1 && found}>
    <${Table} label="Cases in columns of reports" head=${["Case", ...columns.map((column) => /** @type {any} */ (html`<a class="link" href=${link(["evaluations", column.id])}><${Ago} at=${column.at} />${column.model ? html`<br />${plain(column.model)}` : ""}</a>`))]}
      rows=${rows.map((row) => html`<tr key=${row.key} class=${row.marks[0] === "worse" ? "regressed" : ""}>
        <td class="mono">${brief(row.key, 60)}</td>
        ${row.cells.map((cell, n) => html`<td>${cell
          ? html`<a href=${link(["evaluations", columns[n].id], { case: row.key })}><${Pill} state=${mark(cell)} text=${cell.runs === 1 ? (cell.passed ? "passed" : "failed") : `${cell.passed} of ${cell.runs}`} />${row.marks[n] ? html` <b class=${row.marks[n] === "worse" ? "more" : "less"}>${row.marks[n]}</b>` : ""}</a>`
          : html`<span class="muted">–</span>`}</td>`)}
      </tr>`)} /><//>`;
}

/** @param {{agent?: string}} props agent: those of one agent only */
export function Datasets({ agent = "" }) {
  const found = useResource("/v1/datasets", { live: false });
  const datasets = (found.value?.datasets || []).filter((/** @type {any} */ one) => !agent || (one.kind === "agent" && one.owner === agent));
  return html`<${Refusal} problem=${found.problem} />
    ${found.loading && html`<p class="muted pad">Loading.</p>`}
    ${found.value && !datasets.length && html`<${Empty} command="astromesh eval add RUN">No dataset is configured. A file <code>evals/AGENT.yaml</code> makes one; this command makes a case of a recorded run.<//>`}
    ${datasets.map((/** @type {any} */ one) => html`<section class="pane" key=${`${one.kind}/${one.owner}/${one.name}`} aria-label=${plain(one.name)}>
      <div class="title-row"><h2>${plain(one.name)}</h2><span class="muted">of the ${one.kind} ${one.kind === "agent" ? html`<a class="link" href=${link(["agents", one.owner])}>${plain(one.owner)}</a>` : plain(one.owner)}</span>
        <span class="grow"></span>${!one.fault && html`<span class="muted">${count(one.cases.length)} ${one.cases.length === 1 ? "case" : "cases"}</span>`}</div>
      ${one.fault && html`<div class="refusal" role="alert">${plain(one.fault)}</div>`}
      ${one.cases.length > 0 && html`<div class="card"><${Table} label=${`Cases of ${plain(one.name)}`} head=${["Case", "Input", "Checks", "Runs"]} rows=${one.cases.map((/** @type {any} */ each) => html`
        <tr key=${`${each.suite}/${each.id}`}><td class="mono">${brief(each.suite === one.name ? each.id : `${each.suite}/${each.id}`, 50)}</td><td class="text">${brief(typeof each.input === "string" ? each.input : JSON.stringify(each.input), 120)}</td>
          <td>${plain(each.checks.join(", "))}</td><td>${each.recorded ? "from a recording" : "live"}</td></tr>`)} /></div>
        <pre tabindex="0">${plain(one.kind === "agent" ? `astromesh eval run ${one.owner} --dataset ${one.name}` : `astromesh eval run ${one.owner}`)}</pre>`}
    </section>`)}`;
}
