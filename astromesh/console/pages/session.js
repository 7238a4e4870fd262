// @ts-check
// One session: its turns, what its newest run has recalled and why, what else is stored, facts, its runs; erasing.
import { get, remove } from "../api.js";
import { html, useState } from "../lib.js";
import { Markdown } from "../markdown.js";
import { refresh, useResource } from "../poll.js";
import { go, link } from "../router.js";
import { StepParts } from "../step.js";
import { Ago, Card, Confirm, CopyRequest, count, Empty, Head, Json, plain, Refusal, useAction } from "../ui.js";
import { RunTable } from "./runs.js";

/** @param {{path: string[]}} props */
export default function Session({ path: [, agent, id = ""] }) {
  const path = `/v1/agents/${encodeURIComponent(agent)}/sessions/${encodeURIComponent(id)}`;
  const found = useResource(`${path}?limit=1000`);
  const runs = useResource(`/v1/runs?limit=50&agent=${encodeURIComponent(agent)}&session=${encodeURIComponent(id)}`);
  const action = useAction();
  const erase = () => action.run(async () => (await remove(path), refresh("/v1/agents"), go(link(["sessions"], { agent }))));
  const newest = runs.value?.runs?.[0];
  return html`
    <${Head} trail=${[["Sessions", link(["sessions"], { agent })], [plain(agent), link(["agents", agent])]]} title=${html`<span class="mono">${plain(id)}</span>`}>
      <span class="grow"></span><a class="button" href=${link(["chat"], { agent, session: id })}>Continue in chat</a>
      <${Confirm} label="Erase the session" question="End its runs and erase its memory for good?" disabled=${action.busy} onYes=${erase} />
      <${CopyRequest} path=${path} /><//>
    <${Refusal} problem=${action.problem || (found.problem?.status === 404 ? null : found.problem)} />
    <div class="grid">
      <${Card} title="Turns" class="full">
        ${found.value?.turns?.length
          ? html`<div class="pane">${found.value.turns.map((/** @type {any} */ turn) => html`
              <div class="msg" key=${turn.seq}><div class="who">${turn.seq} · ${plain(turn.role)}${turn.status ? ` · ${turn.status}` : ""} · <${Ago} at=${turn.created_at} /></div><div class="what"><${Markdown} text=${turn.content || ""} /></div></div>`)}</div>`
          : (found.value || found.problem?.status === 404) && html`<${Empty}>No turn is stored.<//>`}<//>
      ${newest && html`<${Recalled} key=${newest.run_id} run=${newest.run_id} />`}
      <${Stored} agent=${agent} session=${id} />
      <${Facts} agent=${agent} session=${id} />
      <${Card} title="Runs" class="full">${runs.value?.runs?.length ? html`<${RunTable} runs=${runs.value.runs} />` : html`<${Refusal} problem=${runs.problem} />${runs.value && html`<${Empty}>No run is stored.<//>`}`}<//>
    </div>`;
}

/** What the newest run has remembered, with the nearness of each passage. @param {{run: string}} props */
function Recalled({ run }) {
  const path = `/v1/runs/${encodeURIComponent(run)}/steps`;
  const steps = useResource(path, { live: false });
  const number = steps.value?.steps.find((/** @type {any} */ step) => step.kind === "memory")?.step;
  const step = useResource(number ? `${path}/${number}` : "", { live: false });
  return html`<${Card} title="Recalled by the newest run" class="wide" more=${number && html`<a class="muted" href=${link(["runs", run], { step: number })}>The step</a>`}>
    <div class="pane"><${Refusal} problem=${step.problem} />
      ${steps.problem && html`<p class="muted">${plain(steps.problem.message)}</p>`}
      ${steps.value && !number && html`<p class="muted">The agent has no memory.</p>`}
      ${step.value && html`<${StepParts} step=${step.value} />`}</div><//>`;
}

/** Who talks in a session. @param {string} agent @param {string} session @returns {Promise<string>} */
async function principalOf(agent, session) {
  const near = await get(`/v1/agents/${encodeURIComponent(agent)}/sessions?limit=1000`);
  return near.sessions.find((/** @type {any} */ one) => one.session_id === session)?.principal || "anonymous";
}

/** What the agent has learned of the person, each with its dates and its sentence. @param {{agent: string, session: string}} props */
function Facts({ agent, session }) {
  const [path, setPath] = useState("");
  const found = useResource(path && `${path}?limit=1000`, { live: false });
  const action = useAction();
  const show = () => action.run(async () => setPath(`/v1/principals/${encodeURIComponent(await principalOf(agent, session))}/facts`));
  const erase = (/** @type {string} */ id) => action.run(async () => (await remove(`${path}/${id}`), refresh(path)));
  const facts = (found.value?.facts || []).filter((/** @type {any} */ one) => one.agent === agent);
  return html`<${Card} title="Facts about the person" class="wide" more=${found.value && html`<span class="muted">${count(facts.length)} stored</span>`}>
    <div class="pane"><${Refusal} problem=${action.problem || found.problem} />
      ${!path
        ? html`<div><button type="button" disabled=${action.busy} onClick=${show}>Show the facts</button></div><p class="muted">What the person has stated in any session. The audit log records that you read them.</p>`
        : facts.length
          ? facts.map((/** @type {any} */ one) => html`<div class="msg" key=${one.id}>
              <div class="who title-row"><span>since ${one.since}${one.stated === one.since ? "" : ` · stated again ${one.stated}`} · found by ${one.by === "model" ? "the model" : "rules"}</span><span class="grow"></span>
                <${Confirm} label="Erase" question="Erase this fact for good?" disabled=${action.busy} onYes=${() => erase(one.id)} /></div>
              <div class="what">${plain(one.content)}${one.said && html` <span class="muted">“${plain(one.said)}”</span>`}</div></div>`)
          : found.value && html`<p class="muted">None. Agents with <code>memory.semantic.facts</code> store them.</p>`}</div><//>`;
}

/** Summaries, passages and events of the person whose session it is: the audit log records who reads them. @param {{agent: string, session: string}} props */
function Stored({ agent, session }) {
  const [found, setFound] = useState(/** @type {any[] | null} */ (null));
  const action = useAction();
  const read = () =>
    action.run(async () => {
      const principal = await principalOf(agent, session);
      const lines = String(await get(`/v1/principals/${encodeURIComponent(principal)}/data`)).split("\n").filter(Boolean).map((line) => JSON.parse(line));
      setFound(lines.filter((one) => ["summary", "passage", "event"].includes(one.kind) && one.agent === agent && (!one.session_id || one.session_id === session)));
    });
  return html`<${Card} title="Summaries, passages, episodes" class="wide" more=${found && html`<span class="muted">${count(found.length)} stored</span>`}>
    <div class="pane"><${Refusal} problem=${action.problem} />
      ${found === null
        ? html`<div><button type="button" disabled=${action.busy} onClick=${read}>Show what is stored</button></div><p class="muted">Beside the turns. Passages are those of all sessions of the person. The audit log records that you read them.</p>`
        : found.length
          ? found.map((one, at) => html`<div class="msg" key=${at}><div class="who">${one.kind}${one.upto ? ` of the turns up to ${one.upto}` : ""}</div><div class="what"><${Json} value=${one.content ?? one.event} /></div></div>`)
          : html`<p class="muted">Nothing beside the turns.</p>`}</div><//>`;
}
