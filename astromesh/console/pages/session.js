// @ts-check
// One session: its turns and its runs; erasing it.
import { remove } from "../api.js";
import { html } from "../lib.js";
import { Markdown } from "../markdown.js";
import { refresh, useResource } from "../poll.js";
import { go, link } from "../router.js";
import { Ago, Card, Confirm, CopyRequest, Empty, Head, plain, Refusal, useAction } from "../ui.js";
import { RunTable } from "./runs.js";

/** @param {{path: string[]}} props */
export default function Session({ path: [, agent, id = ""] }) {
  const path = `/v1/agents/${encodeURIComponent(agent)}/sessions/${encodeURIComponent(id)}`;
  const found = useResource(`${path}?limit=1000`);
  const runs = useResource(`/v1/runs?limit=50&agent=${encodeURIComponent(agent)}&session=${encodeURIComponent(id)}`);
  const action = useAction();
  const erase = () => action.run(async () => (await remove(path), refresh("/v1/agents"), go(link(["sessions"], { agent }))));
  return html`
    <${Head} trail=${[["Sessions", link(["sessions"], { agent })], [plain(agent), link(["agents", agent])]]} title=${html`<span class="mono">${plain(id)}</span>`}>
      <span class="grow"></span><a class="button" href=${link(["chat"], { agent, session: id })}>Continue in chat</a>
      <${Confirm} label="Erase the session" question="Erase its turns and its runs for good?" disabled=${action.busy} onYes=${erase} />
      <${CopyRequest} path=${path} /><//>
    <${Refusal} problem=${action.problem || (found.problem?.status === 404 ? null : found.problem)} />
    <div class="grid">
      <${Card} title="Turns" class="full">
        ${found.value?.turns?.length
          ? html`<div class="pane">${found.value.turns.map((/** @type {any} */ turn) => html`
              <div class="msg" key=${turn.seq}><div class="who">${turn.seq} · ${plain(turn.role)}${turn.status ? ` · ${turn.status}` : ""} · <${Ago} at=${turn.created_at} /></div><div class="what"><${Markdown} text=${turn.content || ""} /></div></div>`)}</div>`
          : html`<${Empty}>No turn is stored.<//>`}<//>
      <${Card} title="Runs" class="full">${runs.value?.runs?.length ? html`<${RunTable} runs=${runs.value.runs} />` : html`<${Empty}>No run is stored.<//>`}<//>
    </div>`;
}
