// @ts-check
// System: models and their circuits, stores, tools, faults of the configuration, the audit log.
import { html } from "../lib.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Ago, brief, CopyRequest, count, duration, Empty, Head, Pill, plain, Refusal, Table, Tabs } from "../ui.js";

export default function System() {
  const tab = place.value.query.tab || "Models";
  const ready = useResource("/health/ready");
  const providers = useResource(tab === "Models" ? "/v1/providers" : "");
  const audit = useResource(tab === "Audit" ? "/v1/audit?limit=200" : "");
  const tools = useResource(tab === "Tools" ? "/v1/tools" : "", { live: false });
  const health = ready.value || ready.problem?.body;
  const checks = Object.entries(health?.checks || {});
  return html`
    <${Head} title="System">${health?.status && html`<${Pill} state=${health.status} />`}<span class="grow"></span><${CopyRequest} path=${tab === "Audit" ? "/v1/audit" : tab === "Stores" ? "/health/ready" : tab === "Tools" ? "/v1/tools" : "/v1/providers"} /><//>
    <${Tabs} tabs=${["Models", "Stores", "Tools", "Configuration", "Audit"]} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    ${tab === "Models" && html`<${Refusal} problem=${providers.problem} /><${Table} label="Models" head=${["Model", "Circuit", "Failures in a row", ["Latency", "r"], ["Calls", "r"], ["Failures", "r"], "Last error"]} rows=${(providers.value?.providers || []).map((/** @type {any} */ one) => html`
      <tr key=${one.name}><td>${plain(one.name)} <span class="muted">${plain(one.provider)} / ${plain(one.model)}</span></td><td><${Pill} state=${one.circuit} text=${one.retry_in_seconds ? `${one.circuit}, next probe in ${Math.ceil(one.retry_in_seconds)} s` : one.circuit} /></td>
        <td class="num">${one.failures_in_a_row}</td><td class="r num">${duration(one.latency_ms)}</td><td class="r num">${count(one.calls)}</td><td class="r num">${count(one.failures)}</td><td class="text">${brief(one.last_error, 120)}</td></tr>`)} />`}
    ${tab === "Stores" && html`<${Table} label="Stores and providers" head=${["Part", "State"]} rows=${checks.map(([name, state]) => html`<tr key=${name}><td class="mono">${plain(name)}</td><td><${Pill} state=${String(state)} /></td></tr>`)} />`}
    ${tab === "Tools" && html`<${Refusal} problem=${tools.problem} /><${Table} label="Tools" head=${["Tool", "Effect", "Description", "Agents"]} rows=${(tools.value?.tools || []).map((/** @type {any} */ one) => html`
      <tr key=${one.name}><td class="mono">${plain(one.name)}</td><td>${plain(one.effect)}</td><td class="text">${brief(one.function.description, 110)}</td><td class="num">${one.agents.length}</td></tr>`)} />`}
    ${tab === "Configuration" && html`<${Configuration} />`}
    ${tab === "Audit" && html`<${Refusal} problem=${audit.problem} />${audit.value && (audit.value.acts.length
      ? html`<${Table} label="Audit log" head=${["When", "Action", "Object", "Outcome", "Principal", "Detail"]} rows=${audit.value.acts.map((/** @type {any} */ one, /** @type {number} */ at) => html`
          <tr key=${at}><td><${Ago} at=${one.at} /></td><td>${plain(one.action)}</td><td class="mono">${brief(one.object, 40)}</td><td><${Pill} state=${one.outcome} /></td><td>${plain(one.principal)}</td><td class="text">${brief(one.detail, 80)}</td></tr>`)} />`
      : html`<${Empty}>Nothing has been recorded.<//>`)}`}`;
}

/** The faults of agents and workflows, with file, line and column. */
function Configuration() {
  const agents = useResource("/v1/agents", { live: false });
  const workflows = useResource("/v1/workflows", { live: false });
  const found = [
    ...faultsOf("agent", agents.value?.agents, (name) => link(["agents", name])),
    ...faultsOf("workflow", workflows.value?.workflows, (name) => link(["workflows"], { workflow: name })),
  ];
  return html`<${Refusal} problem=${agents.problem || workflows.problem} />
    ${agents.value && workflows.value && (found.length
      ? html`<${Table} label="Faults of the configuration" head=${["Part", "State", "Fault"]} rows=${found.map(({ kind, name, state, text, href }, at) => html`
          <tr key=${at}><td><span class="muted">${kind}</span> <a class="link" href=${href}>${plain(name)}</a></td><td><${Pill} state=${state} /></td><td class="wrap mono">${plain(text)}</td></tr>`)} />`
      : html`<${Empty} command="astromesh validate">No agent and no workflow has a fault. This command checks all files, those of providers and knowledge too.<//>`)}`;
}

/** @param {string} kind @param {any[] | undefined} parts @param {(name: string) => string} address */
const faultsOf = (kind, parts, address) =>
  (parts || []).flatMap(({ name, status, errors = [], warnings = [] }) => [
    ...errors.map((/** @type {any} */ text) => ({ kind, name, state: status, text, href: address(name) })),
    ...warnings.map((/** @type {any} */ text) => ({ kind, name, state: "warning", text, href: address(name) })),
  ]);
