// @ts-check
// Sessions of an agent, and how to find them.
import { html, useState } from "../lib.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Ago, brief, CopyRequest, count, Empty, Head, plain, Refusal, Select, Table } from "../ui.js";

export default function Sessions() {
  const agents = useResource("/v1/agents", { live: false });
  const names = (agents.value?.agents || []).map((/** @type {any} */ one) => one.name);
  const agent = place.value.query.agent || names[0] || "";
  const after = place.value.query.after || "";
  const path = agent ? `/v1/agents/${encodeURIComponent(agent)}/sessions?limit=200${after ? `&after=${encodeURIComponent(after)}` : ""}` : "";
  const found = useResource(path);
  const [wanted, setWanted] = useState("");
  const sessions = (found.value?.sessions || []).filter((/** @type {any} */ one) => one.session_id.includes(wanted));
  if (agents.value && !agent) return html`<${Head} title="Sessions" /><${Empty} command="astromesh new PROJECT">No agent is configured. A project with a first agent is made so:<//>`;
  return html`
    <${Head} title="Sessions"><span class="grow"></span>${path && html`<${CopyRequest} path=${path} />`}<//>
    <div class="filters">
      <${Select} label="Agent" value=${agent} options=${names} onChange=${(/** @type {string} */ value) => refine({ agent: value, after: "" })} />
      <label class="field"><span>Id contains</span><input value=${wanted} onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label>
    </div>
    <${Refusal} problem=${found.problem} />
    ${found.value && (sessions.length
      ? html`<${Table} label="Sessions" head=${["Session", ["Turns", "r"], ["Begun", "r"], ["Last turn", "r"], ["Action", "r"]]} rows=${sessions.map((/** @type {any} */ one) => html`
          <tr key=${one.session_id}><td class="mono"><a class="link" href=${link(["sessions", agent, one.session_id])} title=${plain(one.session_id)}>${brief(one.session_id, 60)}</a></td><td class="r num">${count(one.turns)}</td>
            <td class="r"><${Ago} at=${one.created_at} /></td><td class="r"><${Ago} at=${one.updated_at} /></td><td class="r"><a class="button" href=${link(["chat"], { agent, session: one.session_id })}>Chat</a></td></tr>`)} />
          ${found.value.next && html`<p class="pad"><a class="button" href=${link(["sessions"], { agent, after: found.value.next })}>More</a></p>`}`
      : html`<${Empty}>${plain(agent)} has stored no session${wanted ? " of this name" : ""}. Agents with <code>memory.conversational</code> store them.<//>`)}`;
}
