// @ts-check
// Home: how the server does, what waits for a person, what ran last.
import { Chart } from "../charts.js";
import { html } from "../lib.js";
import { useResource } from "../poll.js";
import { link } from "../router.js";
import { Ago, brief, Card, cost, count, CopyRequest, duration, Empty, Head, Id, Pill, plain, Refusal, Table } from "../ui.js";
import { RunTable } from "./runs.js";

const STATISTICS = "/v1/statistics?minutes=60";

export default function Home() {
  const statistics = useResource(STATISTICS);
  const runs = useResource("/v1/runs?limit=12");
  const approvals = useResource("/v1/approvals?limit=100");
  const providers = useResource("/v1/providers");
  const agents = useResource("/v1/agents", { live: false });
  const ready = useResource("/health/ready", { live: false });
  const { minutes = [], today, total } = statistics.value || {};
  const at = minutes.map((/** @type {any} */ one) => one.at);
  const faulty = (agents.value?.agents || []).filter((/** @type {any} */ one) => one.status !== "ready");
  const state = ready.value?.status || (ready.problem ? "not_ready" : "");
  return html`
    <${Head} title="Home">${state && html`<${Pill} state=${state} />`}<span class="grow"></span><${CopyRequest} path=${STATISTICS} /><//>
    <${Refusal} problem=${statistics.problem} />
    <div class="grid">
      <div class="card stat num"><small>Runs, last hour</small><b>${count(total?.runs)}</b><small>${count(today?.runs)} today</small></div>
      <div class="card stat num"><small>Failed, last hour</small><b>${total ? `${total.runs ? ((100 * total.failed) / total.runs).toFixed(1) : "0"} %` : "–"}</b><small>${count(total?.failed)} ${total?.failed === 1 ? "run" : "runs"}</small></div>
      <div class="card stat num"><small>p50 / p95, last hour</small><b>${duration(total?.p50_ms)} / ${duration(total?.p95_ms)}</b><small>from acceptance to answer</small></div>
      <div class="card stat num"><small>Cost today</small><b>${cost(today?.cost_usd)}</b><small>${count(today?.tokens)} tokens</small></div>
      <${Card} title="Runs and errors per minute" class="wide">
        <${Chart} label="Runs and failed runs per minute in the last hour" at=${at} lines=${[
          { label: "runs", colour: "accent", values: minutes.map((/** @type {any} */ one) => one.runs) },
          { label: "failed", colour: "bad", values: minutes.map((/** @type {any} */ one) => one.failed) },
        ]} /><//>
      <${Card} title="Tokens per minute" class="wide">
        <${Chart} label="Tokens per minute in the last hour" at=${at} lines=${[
          { label: "tokens", colour: "tool", values: minutes.map((/** @type {any} */ one) => one.tokens) },
        ]} /><//>
      <${Card} title="Waits for a person" class="full" more=${html`<a class="muted" href=${link(["approvals"])}>All approvals</a>`}>
        ${approvals.value?.approvals?.length
          ? html`<${Table} label="Approvals" head=${["Call", "Agent or workflow", "Session or stage", ["Asked", "r"], ["Expires", "r"], ["Action", "r"]]} rows=${approvals.value.approvals.slice(0, 6).map((/** @type {any} */ one) => html`
              <tr key=${one.task_id ? `${one.task_id}/${one.id}` : one.run_id}><td class="mono text">${brief(`${one.name} ${JSON.stringify(one.arguments)}`, 90)}</td><td>${plain(one.asking_agent || one.workflow)}</td><td class="mono">${brief(one.session_id || one.stage, 18)}</td>
                <td class="r"><${Ago} at=${one.asked_at} /></td><td class="r"><${Ago} at=${one.expires_at} /></td><td class="r"><a class="button" href=${link(["approvals"], { run: one.task_id ? `${one.task_id}/${one.id}` : one.run_id })}>Review</a></td></tr>`)} />`
          : html`<${Refusal} problem=${approvals.problem} />${approvals.value && html`<p class="muted pad">Nothing waits.</p>`}`}<//>
      <${Card} title="Latest runs" class="full" more=${html`<a class="muted" href=${link(["runs"])}>All runs</a>`}>
        ${runs.value?.runs?.length
          ? html`<${RunTable} runs=${runs.value.runs} short />`
          : runs.value && html`<${Empty} command=${'astromesh run AGENT "How do I get started?"'}>No run yet. Ask an agent here in <a class="link" href=${link(["chat"])}>Chat</a>, or from a shell.<//>`}
        <${Refusal} problem=${runs.problem} /><//>
      <${Card} title="Models" class="wide" more=${html`<a class="muted" href=${link(["system"])}>System</a>`}>
        <${Refusal} problem=${providers.problem} />
        ${providers.value && !providers.value.providers.length ? html`<p class="muted pad">No agent has a model.</p>` : html`<${Table} label="Models" head=${["Model", "Circuit", ["Latency", "r"], ["Failures", "r"]]} rows=${(providers.value?.providers || []).map((/** @type {any} */ one) => html`
          <tr key=${one.name}><td>${plain(one.provider)} / ${plain(one.model)}</td><td><${Pill} state=${one.circuit} text=${one.retry_in_seconds ? `${one.circuit} ${Math.ceil(one.retry_in_seconds)} s` : one.circuit} /></td>
            <td class="r num">${duration(one.calls ? one.latency_ms : null)}</td><td class="r num">${one.calls ? `${((100 * one.failures) / one.calls).toFixed(1)} %` : "–"}</td></tr>`)} />`}<//>
      <${Card} title="Configuration" class="wide">
        ${faulty.length
          ? html`<${Table} label="Agents with faults" head=${["Agent", "State", "Fault"]} rows=${faulty.map((/** @type {any} */ one) => html`
              <tr key=${one.name}><td><a class="link" href=${link(["agents", one.name])}>${plain(one.name)}</a></td><td><${Pill} state=${one.status} /></td><td class="wrap">${brief((one.errors || one.missing || [])[0], 200)}</td></tr>`)} />`
          : agents.value && !agents.value.agents.length
          ? html`<${Empty} command="astromesh new PROJECT">No agent is configured. A project with a first agent is made so:<//>`
          : html`<p class="muted pad">${agents.value ? `All ${agents.value.agents.length} agents are ready.` : "Loading."}</p>`}<//>
    </div>`;
}
