// @ts-check
// System: models and their circuits, queues and workers, budgets, channels, keys, stores, tools, faults, the audit log.
import { ApiKeys } from "../credentials.js";
import { html } from "../lib.js";
import { useResource } from "../poll.js";
import { chosenTab, link, refine } from "../router.js";
import { Ago, brief, Card, CopyRequest, cost, count, duration, Empty, faultText, Head, Pill, plain, Refusal, Table, Tabs } from "../ui.js";

/** Each tab, and the request that fills it. @type {Record<string, {path: string, live: boolean, View: (props: {value: any}) => any}>} */
const TABS = {
  Models: { path: "/v1/providers", live: true, View: Models },
  Queues: { path: "/v1/queues", live: true, View: Queues },
  Budgets: { path: "/v1/budgets?limit=200", live: true, View: Budgets },
  Channels: { path: "/v1/channels", live: true, View: Channels },
  Keys: { path: "/v1/keys", live: false, View: ApiKeys },
  Stores: { path: "/health/ready", live: true, View: Stores },
  Tools: { path: "/v1/tools", live: false, View: Tools },
  Configuration: { path: "/v1/faults", live: false, View: Configuration },
  Audit: { path: "/v1/audit?limit=200", live: true, View: Audit },
};

export default function System() {
  const tab = chosenTab(Object.keys(TABS));
  const ready = useResource("/health/ready");
  const { path, live, View } = TABS[tab];
  const found = useResource(path, { live });
  const state = (ready.value || ready.problem?.body)?.status;
  const value = tab === "Stores" ? found.value || found.problem?.body : found.value;
  return html`
    <${Head} title="System">${state && html`<${Pill} state=${state} />`}<span class="grow"></span><${CopyRequest} path=${path} /><//>
    <${Tabs} tabs=${Object.keys(TABS)} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    ${found.loading && html`<p class="muted pad">Loading.</p>`}
    ${!value?.checks && html`<${Refusal} problem=${found.problem} />`}
    ${value && !(found.problem && !value.checks) && html`<${View} key=${tab} value=${value} />`}`;
}

/** @param {{value: any}} props */
function Models({ value: { providers } }) {
  if (!providers.length) return html`<${Empty} command=${"spec:\n  model:\n    primary: {provider: embedded}"}>No agent has a model. With this in its YAML it has one that needs no key.<//>`;
  return html`<${Table} label="Models" head=${["Model", "Circuit", "Failures in a row", ["Latency", "r"], ["Calls", "r"], ["Failures", "r"], "Last error"]} rows=${providers.map((/** @type {any} */ one) => html`
    <tr key=${one.name}><td>${plain(one.name)} <span class="muted">${plain(one.provider)} / ${plain(one.model)}</span></td><td><${Pill} state=${one.circuit} text=${one.retry_in_seconds ? `${one.circuit}, next probe in ${Math.ceil(one.retry_in_seconds)} s` : one.circuit} /></td>
      <td class="num">${one.failures_in_a_row}</td><td class="r num">${duration(one.calls ? one.latency_ms : null)}</td><td class="r num">${count(one.calls)}</td><td class="r num">${count(one.failures)}</td><td class="text">${brief(one.last_error, 120)}</td></tr>`)} />`;
}

/** @param {{value: any}} props */
function Queues({ value: { queues, tasks, workers } }) {
  return html`<div class="pane">${queues.length
    ? html`<${Card} title="Durable runs"><${Table} label="Queues" head=${["Agent", ["Queued", "r"], ["Oldest", "r"], ["Later", "r"], ["Running", "r"], ["Waiting", "r"]]} rows=${queues.map((/** @type {any} */ one) => html`
        <tr key=${one.agent}><td><a class="link" href=${link(["agents", one.agent])}>${plain(one.agent)}</a></td>
          <td class="r num">${runsOf(one, "queued")}</td><td class="r">${one.oldest_at && html`<${Ago} at=${one.oldest_at} />`}</td><td class="r num">${count(one.later)}</td>
          <td class="r num">${runsOf(one, "running")}</td><td class="r num">${runsOf(one, "waiting")}</td></tr>`)} /><//>`
    : html`<${Empty} command=${'curl -sS -X POST $URL/v1/agents/AGENT/runs -H "content-type: application/json" -d \'{"query": "…", "session_id": "…"}\''}>No durable run is queued, running or waiting. One is accepted so:<//>`}
    ${tasks.length > 0 && html`<${Card} title="Tasks"><${Table} label="Tasks" head=${["Workflow", ["Queued", "r"], ["Oldest", "r"], ["Running", "r"], ["Waiting", "r"]]} rows=${tasks.map((/** @type {any} */ one) => html`
      <tr key=${one.workflow}><td><a class="link" href=${link(["workflows"], { workflow: one.workflow })}>${plain(one.workflow)}</a></td>
        <td class="r num">${count(one.queued)}</td><td class="r">${one.oldest_at && html`<${Ago} at=${one.oldest_at} />`}</td>
        <td class="r num">${count(one.running)}</td><td class="r num">${count(one.waiting)}</td></tr>`)} /><//>`}
    ${workers.length > 0 && html`<${Card} title="Workers"><${Table} label="Workers" head=${["Worker", ["Executes", "r"], ["Last heartbeat", "r"]]} rows=${workers.map((/** @type {any} */ one) => html`
      <tr key=${one.worker}><td class="mono">${plain(one.worker)}</td><td class="r num">${count(one.running)} ${one.running === 1 ? "run" : "runs"}</td><td class="r"><${Ago} at=${one.seen_at} /></td></tr>`)} /><//>`}</div>`;
}

/** The number of runs of a status, which leads to them. @param {any} queue @param {string} status */
const runsOf = (queue, status) => (queue[status] ? html`<a class="link" href=${link(["runs"], { agent: queue.agent, status })}>${count(queue[status])}</a>` : "0");

/** How much of each limit is used. @param {any} budget */
const shares = ({ used, limits }) =>
  Object.entries({ tokens: count, cost_usd: cost, tool_calls: count, wall_seconds: (/** @type {number} */ seconds) => duration(seconds * 1000) })
    .filter(([key]) => limits[key] !== null)
    .map(([key, show]) => ({ key: key.split("_")[0], text: `${show(used[key])} of ${show(limits[key])}`, share: used[key] / limits[key] }));

/** @param {{value: any}} props */
function Budgets({ value: { budgets } }) {
  return budgets.length
    ? html`<${Table} label="Budgets" head=${["Agent", "Of", "Session or day", "Principal", "Used"]} rows=${budgets.map((/** @type {any} */ one) => html`
        <tr key=${`${one.agent} ${one.kind} ${one.name}`}><td><a class="link" href=${link(["agents", one.agent])}>${plain(one.agent)}</a></td><td>${one.kind}</td>
          <td class="mono">${one.kind === "session" ? html`<a class="link" href=${link(["sessions", one.agent, one.name])}>${brief(one.name, 40)}</a>` : plain(one.name.split(" ")[0])}</td><td>${plain(one.principal)}</td>
          <td class="num">${shares(one).map(({ key, text, share }) => html`<span class=${share >= 1 ? "bad-text" : share >= 0.8 ? "warn-text" : ""}>${key} ${text} </span>`)}</td></tr>`)} />`
    : html`<${Empty} command=${"spec:\n  budgets:\n    per_session: {tokens: 50000}\n    per_principal_daily: {cost_usd: 2}"}>No budget has been used. With this in an agent's YAML it has some.<//>`;
}

/** @param {{value: any}} props */
function Channels({ value: { channels } }) {
  return channels.length
    ? html`<${Table} label="Channels" head=${["Channel", "Agents", "Webhook", ["Wait for an answer", "r"], ["Tried again", "r"]]} rows=${channels.map((/** @type {any} */ one) => html`
        <tr key=${one.channel}><td>${plain(one.channel)}</td><td>${one.agents.map((/** @type {string} */ name) => html`<a class="link" href=${link(["agents", name])}>${plain(name)}</a> `)}</td><td class="mono">${plain(one.webhook)}</td>
          <td class="r num">${count(one.waiting)}</td><td class="r num">${one.retried ? html`<span class="warn-text">${count(one.retried)}</span>` : "0"}</td></tr>`)} />`
    : html`<${Empty}>No messenger is connected. <code>channels.yaml</code> connects WhatsApp, Telegram and Slack.<//>`;
}

/** @param {{value: any}} props */
function Stores({ value }) {
  return html`<${Table} label="Stores and providers" head=${["Part", "State"]} rows=${Object.entries(value.checks || {}).map(([name, state]) => html`
  <tr key=${name}><td class="mono">${plain(name)}</td><td><${Pill} state=${String(state)} /></td></tr>`)} />`;
}

/** @param {{value: any}} props */
function Tools({ value: { tools } }) {
  if (!tools.length) return html`<${Empty} command=${"spec:\n  tools:\n    - {name: lookup, type: internal, function: \"package.module:function\"}"}>No agent has a tool. With this in its YAML it calls a function in Python.<//>`;
  return html`<${Table} label="Tools" head=${["Tool", "Effect", "Description", "Agents"]} rows=${tools.map((/** @type {any} */ one) => html`
  <tr key=${`${one.name} ${one.agents[0]}`}><td class="mono">${plain(one.name)}</td><td>${plain(one.effect)}</td><td class="text">${brief(one.function.description, 110)}</td>
    <td>${one.agents.map((/** @type {string} */ name) => html`<a class="link" href=${link(["agents", name], { tab: "Tools" })}>${plain(name)}</a> `)}</td></tr>`)} />`;
}

/** The faults of all files, with file, line and column. @param {{value: any}} props */
function Configuration({ value: { faults } }) {
  const workflows = useResource("/v1/workflows", { live: false });
  const ofWorkflows = (workflows.value?.workflows || []).flatMap((/** @type {any} */ { name, errors = [], warnings = [] }) => [
    ...errors.map((/** @type {string} */ text) => ({ name, severity: "error", text })),
    ...warnings.map((/** @type {string} */ text) => ({ name, severity: "warning", text })),
  ]);
  return html`<${Refusal} problem=${workflows.problem} />
    ${workflows.value && (faults.length + ofWorkflows.length
      ? html`<${Table} label="Faults of the configuration" head=${["Place", "Severity", "Key", "Fault"]} rows=${[
          ...faults.map((/** @type {any} */ one, /** @type {number} */ at) => html`
            <tr key=${at}><td class="mono">${placeOf(one)}</td><td><${Pill} state=${one.severity} /></td><td class="mono">${plain(one.key)}</td><td class="wrap">${faultText(one)}</td></tr>`),
          ...ofWorkflows.map((/** @type {any} */ { name, severity, text }, /** @type {number} */ at) => html`
            <tr key=${`w${at}`}><td><span class="muted">workflow</span> <a class="link" href=${link(["workflows"], { workflow: name })}>${plain(name)}</a></td><td><${Pill} state=${severity} /></td><td></td><td class="wrap mono">${plain(text)}</td></tr>`),
        ]} />`
      : html`<${Empty} command="astromesh validate">No file has a fault. This command checks all files as they are now.<//>`)}`;
}

/** Where a fault stands; of an agent's file, with a link to it. @param {any} fault */
function placeOf({ file, line, column }) {
  const text = plain([file, line, column].filter(Boolean).join(":")) || "–";
  const agent = /^agents\/(.+)\.agent\.yaml$/.exec(file)?.[1];
  return agent ? html`<a class="link" href=${link(["agents", agent], { tab: "YAML" })}>${text}</a>` : text;
}

/** @param {{value: any}} props */
function Audit({ value: { acts } }) {
  return acts.length
    ? html`<${Table} label="Audit log" head=${["When", "Action", "Object", "Outcome", "Principal", "Detail"]} rows=${acts.map((/** @type {any} */ one, /** @type {number} */ at) => html`
        <tr key=${at}><td><${Ago} at=${one.at} /></td><td>${plain(one.action)}</td><td class="mono">${brief(one.object, 40)}</td><td><${Pill} state=${one.outcome} /></td><td>${plain(one.principal)}</td><td class="text">${brief(one.detail, 80)}</td></tr>`)} />`
    : html`<${Empty}>Nothing has been recorded.<//>`;
}
