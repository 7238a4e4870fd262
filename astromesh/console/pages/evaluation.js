// @ts-check
// One report: its cases, what is better and worse than in another report, and the chosen case.
import { keyOf } from "../evaluation.js";
import { html, useEffect, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { Markdown } from "../markdown.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Ago, brief, cost, CopyRequest, count, duration, Empty, Fact, Failure, Head, Id, Json, LongList, Pill, plain, Refusal, Select } from "../ui.js";

const ROW = 28;

/** @param {{path: string[]}} props */
export default function Report({ path: [, id] }) {
  const { compare = "", case: wanted = "", only = "" } = place.value.query;
  const path = `/v1/evaluations/${encodeURIComponent(id)}${compare ? `?compare=${encodeURIComponent(compare)}` : ""}`;
  const found = useResource(path, { live: false });
  const report = found.value;
  const others = useResource(report ? `/v1/evaluations?limit=200&name=${encodeURIComponent(report.name)}` : "", { live: false });
  const cases = (report?.cases || []).filter((/** @type {any} */ one) => only !== "failed" || !one.passed);
  const [chosen, choose] = useState(-1);
  useEffect(() => choose(-1), [wanted]); // a link to a case goes before what has been walked to
  const at = chosen >= 0 ? Math.min(chosen, cases.length - 1) : Math.max(0, cases.findIndex((/** @type {any} */ one) => keyOf(one) === wanted));
  useKeys([
    ["j", "Next case", () => choose(Math.min(at + 1, cases.length - 1))],
    ["k", "Previous case", () => choose(Math.max(at - 1, 0))],
  ]);
  const older = (others.value?.evaluations || []).filter((/** @type {any} */ one) => one.evaluation_id !== id);
  return html`
    <${Head} trail=${[["Evaluations", link(["evaluations"], { name: report?.name })]]} title=${html`<${Id} id=${id} />`}>
      ${report && html`<${Pill} state=${report.passed ? "ok" : "failed"} text=${report.passed ? "passed" : "failed"} />`}<span class="grow"></span><${CopyRequest} path=${path} /><//>
    <${Refusal} problem=${found.problem} />
    ${report && html`
      <div class="facts">
        <${Fact} name=${report.kind}>${report.kind === "agent" ? html`<a class="link" href=${link(["agents", report.name])}>${plain(report.name)}</a>` : plain(report.name)}<//>
        <${Fact} name="Started"><${Ago} at=${report.started_at} /><//><${Fact} name="Runs">${count(report.cases.length)}<//>
        <${Fact} name="Failed">${count(report.cases.filter((/** @type {any} */ one) => !one.passed).length)}<//><${Fact} name="Cost">${cost(report.cost_usd)}<//>
        ${report.stopped && html`<${Fact} name="Stopped by">cost limit<//>`}
      </div>
      <div class="filters">
        <${Select} label="Show" value=${only} options=${[["", "all cases"], ["failed", "failed cases"]]} onChange=${(/** @type {string} */ value) => refine({ only: value })} />
        <${Select} label="Compare with" value=${compare} options=${[["", "nothing"], ...older.map((/** @type {any} */ one) => [one.evaluation_id, `${new Date(one.started_at * 1000).toLocaleString()} · ${one.failed} failed`])]} onChange=${(/** @type {string} */ value) => refine({ compare: value })} />
      </div>
      ${(report.comparisons || []).map((/** @type {any} */ one) => html`<${Comparison} key=${one.title} found=${one} />`)}
      ${cases.length
        ? html`<div class="split">
            <section aria-label="Cases"><${LongList} label="List of cases" count=${cases.length} height=${ROW} chosen=${at} row=${(/** @type {number} */ n) => html`
              <button type="button" key=${n} class=${`line case ${n === at ? "on" : ""}`} aria-current=${n === at ? "step" : undefined} onClick=${() => choose(n)}>
                <${Pill} state=${cases[n].passed ? "ok" : "failed"} text=${cases[n].passed ? "passed" : "failed"} />
                <span class="mono">${brief(keyOf(cases[n]), 80)}${cases[n].repeat > 1 ? ` · ${cases[n].repeat}` : ""}${cases[n].model ? ` · ${plain(cases[n].model)}` : ""}</span>
                <span class="r num muted">${duration(cases[n].duration_ms)}</span></button>`} /></section>
            <section aria-label="The chosen case">${cases[at] && html`<${CaseDetail} one=${cases[at]} />`}</section>
          </div>`
        : html`<${Empty}>${only ? "No case has failed." : "This report has no case."}<//>`}`}`;
}

/** @param {{found: any}} props */
const Comparison = ({ found }) => html`<section class="pane compared" aria-label="Comparison">
  <div class="title-row"><h2>${plain(found.title)}</h2>
    ${found.worse.length > 0 && html`<${Pill} state="failed" text=${`${found.worse.length} worse`} />`}${found.better.length > 0 && html`<${Pill} state="ok" text=${`${found.better.length} better`} />`}
    <span class="muted num">${count(found.same)} the same · cost ${cost(found.cost_usd[0])}, now ${cost(found.cost_usd[1])} · ${found.seconds[0].toFixed(2)} s, now ${found.seconds[1].toFixed(2)} s</span></div>
  <p class="muted">${plain(found.hint)}</p>
  ${[["worse", "bad"], ["better", "ok"]].map(([kind]) => found[kind].map((/** @type {any} */ one) => html`
    <div key=${`${kind}/${one.suite}/${one.case}`}><b class=${kind === "worse" ? "more" : "less"}>${kind}</b> <a class="link mono" href=${link(place.value.path, { ...place.value.query, case: `${one.suite}/${one.case}` })}>${plain(`${one.suite}/${one.case}`)}</a>${" "}
      <span class="num">passed ${one.before.join(" of ")}, now ${one.after.join(" of ")}</span> <span class="muted">${brief((one.failures || [])[0] || "", 160)}</span></div>`))}
  ${[["before", found.only_before], ["now", found.only_after]].map(([when, cases]) => cases.length > 0 && html`<p class="muted">Only ${when}: ${plain(cases.join(", "))}</p>`)}
</section>`;

/** @param {{one: any}} props */
function CaseDetail({ one }) {
  const text = typeof one.output === "string" ? one.output : "";
  return html`<div class="pane">
    <div class="title-row"><h2 class="mono">${plain(keyOf(one))}</h2><${Pill} state=${one.status} /><span class="grow"></span><span class="muted num">${duration(one.duration_ms)} · ${cost(one.cost_usd)}</span></div>
    <p class="muted">${one.recorded ? "From its recording." : "Live."}${one.model ? ` Model ${plain(one.model)}.` : ""}${one.run_id ? html` <${Id} id=${one.run_id} />` : ""}${one.task_id ? html` <${Id} id=${one.task_id} />` : ""}</p>
    ${one.divergence && html`<div class="refusal">${plain(one.divergence.message)}</div>`}
    <${Failure} error=${one.error} />
    ${one.assertions.map((/** @type {any} */ check, /** @type {number} */ n) => html`<div class="msg" key=${n}>
      <div class="who title-row"><${Pill} state=${check.passed ? "ok" : "failed"} text=${check.passed ? "passed" : "failed"} /><b class="mono">${plain(check.type)}</b></div>
      ${(check.message || check.verdict) && html`<div class="what">${check.message && html`<p>${plain(check.message)}</p>`}${check.verdict && html`<p class="muted">${plain(check.verdict.model)}: ${plain(check.verdict.reason)}</p>`}</div>`}</div>`)}
    <div class="msg"><div class="who">output</div><div class="what">${text ? html`<${Markdown} text=${text} />` : html`<${Json} value=${one.output} />`}</div></div>
    ${one.path.length > 0 && html`<div class="msg"><div class="who">path</div><div class="what mono">${plain(one.path.join(", "))}</div></div>`}
  </div>`;
}
