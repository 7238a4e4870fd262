// @ts-check
// System: models and their circuits, stores, the audit log.
import { html } from "../lib.js";
import { useResource } from "../poll.js";
import { place, refine } from "../router.js";
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
    <${Tabs} tabs=${["Models", "Stores", "Tools", "Audit"]} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    ${tab === "Models" && html`<${Refusal} problem=${providers.problem} /><${Table} label="Models" head=${["Model", "Circuit", "Failures in a row", ["Latency", "r"], ["Calls", "r"], ["Failures", "r"], "Last error"]} rows=${(providers.value?.providers || []).map((/** @type {any} */ one) => html`
      <tr key=${one.name}><td>${plain(one.name)} <span class="muted">${plain(one.provider)} / ${plain(one.model)}</span></td><td><${Pill} state=${one.circuit} text=${one.retry_in_seconds ? `${one.circuit}, next probe in ${Math.ceil(one.retry_in_seconds)} s` : one.circuit} /></td>
        <td class="num">${one.failures_in_a_row}</td><td class="r num">${duration(one.latency_ms)}</td><td class="r num">${count(one.calls)}</td><td class="r num">${count(one.failures)}</td><td class="text">${brief(one.last_error, 120)}</td></tr>`)} />`}
    ${tab === "Stores" && html`<${Table} label="Stores and providers" head=${["Part", "State"]} rows=${checks.map(([name, state]) => html`<tr key=${name}><td class="mono">${plain(name)}</td><td><${Pill} state=${String(state)} /></td></tr>`)} />`}
    ${tab === "Tools" && html`<${Refusal} problem=${tools.problem} /><${Table} label="Tools" head=${["Tool", "Effect", "Description", "Agents"]} rows=${(tools.value?.tools || []).map((/** @type {any} */ one) => html`
      <tr key=${one.name}><td class="mono">${plain(one.name)}</td><td>${plain(one.effect)}</td><td class="text">${brief(one.function.description, 110)}</td><td class="num">${one.agents.length}</td></tr>`)} />`}
    ${tab === "Audit" && html`<${Refusal} problem=${audit.problem} />${audit.value && (audit.value.acts.length
      ? html`<${Table} label="Audit log" head=${["When", "Action", "Object", "Outcome", "Principal", "Detail"]} rows=${audit.value.acts.map((/** @type {any} */ one, /** @type {number} */ at) => html`
          <tr key=${at}><td><${Ago} at=${one.at} /></td><td>${plain(one.action)}</td><td class="mono">${brief(one.object, 40)}</td><td><${Pill} state=${one.outcome} /></td><td>${plain(one.principal)}</td><td class="text">${brief(one.detail, 80)}</td></tr>`)} />`
      : html`<${Empty}>Nothing has been recorded.<//>`)}`}`;
}
