// @ts-check
// One agent: what it is made of, its graph, its YAML with faults and versions, its tools, memory, evaluations and runs.
import { get } from "../api.js";
import { Diagram, fromMermaid } from "../diagram.js";
import { html, useEffect, useState } from "../lib.js";
import { Playground } from "../playground.js";
import { useResource } from "../poll.js";
import { chosenTab, link, refine } from "../router.js";
import { Source } from "../source.js";
import { Ago, Card, cost, count, CopyRequest, Empty, Fact, Head, Json, Pill, plain, Refusal, Table, Tabs, tokens } from "../ui.js";
import { Datasets, Reports } from "./evaluations.js";
import { RunTable } from "./runs.js";

const TABS = ["Parts", "Graph", "YAML", "Tools", "Memory", "Evaluations", "Runs", "Playground"];

/** @param {{path: string[]}} props */
export default function Agent({ path: [, name] }) {
  const path = `/v1/agents/${encodeURIComponent(name)}`;
  const found = useResource(path);
  const runs = useResource(`/v1/runs?limit=20&agent=${encodeURIComponent(name)}`);
  const tools = useResource("/v1/tools", { live: false });
  const tab = chosenTab(TABS);
  const agent = found.value;
  const own = (tools.value?.tools || []).filter((/** @type {any} */ tool) => tool.agents.includes(name));
  return html`
    <${Head} trail=${[["Agents", link(["agents"])]]} title=${plain(name)}>
      ${agent && html`<${Pill} state=${agent.status} />`}<span class="grow"></span>
      ${agent && agent.status !== "unavailable" && html`<a class="button" href=${link(["chat"], { agent: name })}>Chat</a>`}
      <a class="button" href=${link(["runs"], { agent: name })}>Runs</a>
      <${CopyRequest} method="POST" path=${`${path}/run`} body=${{ query: "How do I get started?", session_id: "demo" }} /><//>
    <${Refusal} problem=${found.problem} />
    ${agent && html`<div class="facts">
      <${Fact} name="Pattern">${plain(agent.pattern || "–")}<//><${Fact} name="Version">${plain(agent.version || "–")}<//>
      <${Fact} name="Models">${plain((agent.models || []).join(", ") || "–")}<//>
      <${Fact} name="Iterations at most">${count(agent.max_iterations)}<//><${Fact} name="Time at most">${agent.timeout_seconds ? `${agent.timeout_seconds} s` : "–"}<//>
      ${runs.value && html`<${Fact} name="Tokens of all runs">${count(tokens(runs.value.usage))}<//><${Fact} name="Cost of all runs">${cost(runs.value.usage.cost_usd)}<//>`}
    </div>`}
    <${Tabs} tabs=${TABS} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    ${agent && tab === "Parts" && html`<div class="grid">
      ${agent.description && html`<${Card} title="Description" class="full"><p class="pad">${plain(agent.description)}</p><//>`}
      ${["guardrails", "missing", "labels", "errors"].filter((key) => agent[key] !== undefined).map((key) => html`
        <${Card} key=${key} title=${key} class="wide"><div class="pad"><${Json} value=${agent[key]} /></div><//>`)}
    </div>`}
    ${tab === "Graph" && html`<${AgentGraph} name=${name} />`}
    ${tab === "Tools" && html`<${Refusal} problem=${tools.problem} />`}
    ${agent && tools.value && tab === "Tools" && html`<div class="grid">${own.length ? own.map((/** @type {any} */ tool) => html`
      <${Card} key=${tool.name} title=${plain(tool.name)} more=${html`<span class="muted">effect: ${plain(tool.effect)}</span>`} class="wide">
        <div class="pad"><p>${plain(tool.function.description)}</p><${Json} value=${tool.function.parameters} /></div><//>`) : html`<p class="muted">This agent has no tools.</p>`}</div>`}
    ${tab === "Runs" && (runs.value?.runs?.length ? html`<${RunTable} runs=${runs.value.runs} />` : html`<${Refusal} problem=${runs.problem} />${agent && runs.value && html`<${Empty}>No run yet.<//>`}`)}
    ${agent && tab === "Playground" && html`<${Playground} name=${name} />`}
    ${tab === "YAML" && html`<${Source} path=${`${path}/manifest`} />`}
    ${agent && tab === "Memory" && html`<${Memory} name=${name} memory=${agent.memory} />`}
    ${tab === "Evaluations" && html`<${Evaluations} name=${name} />`}`;
}

/** What an agent keeps, and the sessions that it has kept. @param {{name: string, memory: any}} props */
function Memory({ name, memory = {} }) {
  const kinds = Object.entries(memory);
  const found = useResource(kinds.length ? `/v1/agents/${encodeURIComponent(name)}/sessions?limit=10` : "", { live: false });
  if (!kinds.length) return html`<${Empty} command=${"spec:\n  memory:\n    conversational: {backend: sqlite}"}>This agent remembers nothing. With this in its YAML it remembers conversations.<//>`;
  return html`<div class="grid">
    ${kinds.map(([kind, options]) => html`<${Card} key=${kind} title=${kind} class="wide"><div class="pad"><${Json} value=${options} /></div><//>`)}
    <${Card} title="Sessions" class="full" more=${html`<a class="muted" href=${link(["sessions"], { agent: name })}>All sessions</a>`}>
      <${Refusal} problem=${found.problem} />
      ${found.value && (found.value.sessions.length
        ? html`<${Table} label="Sessions" head=${["Session", "Principal", ["Turns", "r"], ["Last turn", "r"]]} rows=${found.value.sessions.map((/** @type {any} */ one) => html`
            <tr key=${`${one.principal} ${one.session_id}`}><td class="mono"><a class="link" href=${link(["sessions", name, one.session_id])}>${plain(one.session_id)}</a></td><td>${plain(one.principal)}</td>
              <td class="r num">${count(one.turns)}</td><td class="r"><${Ago} at=${one.updated_at} /></td></tr>`)} />`
        : html`<p class="muted pad">No session is stored.</p>`)}<//>
  </div>`;
}

/** @param {{name: string}} props */
function Evaluations({ name }) {
  const found = useResource(`/v1/evaluations?limit=20&name=${encodeURIComponent(name)}`, { live: false });
  return html`<${Refusal} problem=${found.problem} />
    ${found.value?.evaluations.length > 0 && html`<${Reports} reports=${found.value.evaluations} />
      <p class="pad"><a class="link" href=${link(["evaluations"], { name })}>Its cases in columns</a></p>`}
    <${Datasets} agent=${name} />`;
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
