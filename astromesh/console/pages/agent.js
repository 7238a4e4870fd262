// @ts-check
// One agent: what it is made of, its graph, its runs.
import { get } from "../api.js";
import { Diagram, fromMermaid } from "../diagram.js";
import { html, useEffect, useState } from "../lib.js";
import { Playground } from "../playground.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Card, cost, count, CopyRequest, Empty, Fact, Head, Json, Pill, plain, Refusal, Tabs, tokens } from "../ui.js";
import { RunTable } from "./runs.js";

/** @param {{path: string[]}} props */
export default function Agent({ path: [, name] }) {
  const path = `/v1/agents/${encodeURIComponent(name)}`;
  const found = useResource(path);
  const runs = useResource(`/v1/runs?limit=20&agent=${encodeURIComponent(name)}`);
  const tools = useResource("/v1/tools", { live: false });
  const tab = place.value.query.tab || "Parts";
  const agent = found.value;
  const own = (tools.value?.tools || []).filter((/** @type {any} */ tool) => tool.agents.includes(name));
  return html`
    <${Head} trail=${[["Agents", link(["agents"])]]} title=${plain(name)}>
      ${agent && html`<${Pill} state=${agent.status} />`}<span class="grow"></span>
      <a class="button" href=${link(["chat"], { agent: name })}>Chat</a>
      <a class="button" href=${link(["runs"], { agent: name })}>Runs</a>
      <${CopyRequest} method="POST" path=${`${path}/run`} body=${{ query: "How do I get started?", session_id: "demo" }} /><//>
    <${Refusal} problem=${found.problem} />
    ${agent && html`<div class="facts">
      <${Fact} name="Pattern">${plain(agent.pattern)}<//><${Fact} name="Version">${plain(agent.version)}<//>
      <${Fact} name="Models">${plain((agent.models || []).join(", ") || "–")}<//>
      <${Fact} name="Iterations at most">${count(agent.max_iterations)}<//><${Fact} name="Time at most">${agent.timeout_seconds ? `${agent.timeout_seconds} s` : "–"}<//>
      ${runs.value && html`<${Fact} name="Tokens of all runs">${count(tokens(runs.value.usage))}<//><${Fact} name="Cost of all runs">${cost(runs.value.usage.cost_usd)}<//>`}
    </div>`}
    <${Tabs} tabs=${["Parts", "Graph", "Tools", "Runs", "Playground", "Raw"]} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    ${agent && tab === "Parts" && html`<div class="grid">
      ${agent.description && html`<${Card} title="Description" class="full"><p class="pad">${plain(agent.description)}</p><//>`}
      ${["guardrails", "memory", "sessions", "queue", "budgets", "permissions", "labels", "workers", "errors", "warnings"].filter((key) => agent[key] !== undefined).map((key) => html`
        <${Card} key=${key} title=${key} class="wide"><div class="pad"><${Json} value=${agent[key]} /></div><//>`)}
    </div>`}
    ${tab === "Graph" && html`<${AgentGraph} name=${name} />`}
    ${tab === "Tools" && html`<div class="grid">${own.length ? own.map((/** @type {any} */ tool) => html`
      <${Card} key=${tool.name} title=${plain(tool.name)} more=${html`<span class="muted">effect: ${plain(tool.effect)}</span>`} class="wide">
        <div class="pad"><p>${plain(tool.function.description)}</p><${Json} value=${tool.function.parameters} /></div><//>`) : html`<p class="muted">This agent has no tools.</p>`}</div>`}
    ${tab === "Runs" && (runs.value?.runs?.length ? html`<${RunTable} runs=${runs.value.runs} />` : html`<${Empty}>No run yet.<//>`)}
    ${agent && tab === "Playground" && html`<${Playground} name=${name} />`}
    ${agent && tab === "Raw" && html`<div class="pane"><${Json} value=${agent} /></div>`}`;
}

/** @param {{name: string}} props */
function AgentGraph({ name }) {
  const [drawing, setDrawing] = useState(/** @type {any} */ (null));
  useEffect(() => {
    get(`/v1/agents/${encodeURIComponent(name)}/graph`).then((text) => setDrawing({ text, ...fromMermaid(text) }), () => setDrawing({ nodes: [], edges: [], groups: [], text: "" }));
  }, [name]);
  if (!drawing) return html`<p class="muted pad">Loading.</p>`;
  if (!drawing.nodes.length) return html`<${Empty}>This agent has no graph that can be drawn.<//>`;
  return html`<div class="pane"><${Diagram} label=${`Graph of ${name}`} ...${drawing} /><details><summary>Mermaid</summary><${Json} value=${drawing.text} /></details></div>`;
}
