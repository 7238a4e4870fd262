// @ts-check
// Agents: all of them, those with faults included.
import { html, useState } from "../lib.js";
import { useResource } from "../poll.js";
import { link } from "../router.js";
import { brief, CopyRequest, Empty, Head, Pill, plain, Refusal, Table } from "../ui.js";

export default function Agents() {
  const found = useResource("/v1/agents");
  const [wanted, setWanted] = useState("");
  const agents = (found.value?.agents || []).filter((/** @type {any} */ one) => [one.name, one.display_name, one.description, one.pattern].join(" ").toLowerCase().includes(wanted.toLowerCase()));
  return html`
    <${Head} title="Agents"><span class="grow"></span><${CopyRequest} path="/v1/agents" /><//>
    <div class="filters"><label class="field"><span>Name, description or pattern contains</span><input value=${wanted} onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label></div>
    <${Refusal} problem=${found.problem} />
    ${found.value && (agents.length
      ? html`<${Table} label="Agents" head=${["Agent", "State", "Pattern", "Description or fault", "Version", ["Action", "r"]]} rows=${agents.map((/** @type {any} */ one) => html`
          <tr key=${one.name}>
            <td><a class="link" href=${link(["agents", one.name])}>${plain(one.name)}</a></td>
            <td><${Pill} state=${one.status} /></td><td>${plain(one.pattern || "")}</td>
            <td class="text">${brief((one.errors || one.missing || [])[0] || one.description, 130)}</td><td class="num">${plain(one.version || "")}</td>
            <td class="r">${one.status !== "unavailable" && html`<a class="button" href=${link(["chat"], { agent: one.name })}>Chat</a>`}</td>
          </tr>`)} />`
      : html`<${Empty} command="astromesh new PROJECT">No agent ${wanted ? "matches" : "is configured"}.<//>`)}`;
}
