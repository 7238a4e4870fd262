// @ts-check
// Workflows and their Tasks.
import { html } from "../lib.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Ago, brief, Card, CopyRequest, count, Empty, Head, Id, Pill, plain, Refusal, Select, Table } from "../ui.js";

export default function Workflows() {
  const { workflow = "", status = "" } = place.value.query;
  const found = useResource("/v1/workflows", { live: false });
  const path = `/v1/tasks?${new URLSearchParams(Object.entries({ workflow, status, limit: "100" }).filter(([, value]) => value))}`;
  const tasks = useResource(found.value?.workflows?.length ? path : "");
  const names = (found.value?.workflows || []).map((/** @type {any} */ one) => one.name);
  return html`
    <${Head} title="Workflows"><span class="grow"></span><${CopyRequest} path=${path} /><//>
    <${Refusal} problem=${found.problem || tasks.problem} />
    <div class="grid">
      ${(found.value?.workflows || []).map((/** @type {any} */ one) => html`
        <${Card} key=${one.name} title=${plain(one.name)} more=${html`<${Pill} state=${one.status} />`} class="wide">
          <div class="pad"><p>${plain(one.description || "")}</p>${one.status !== "broken" && html`<p class="muted">${count(one.nodes)} nodes · starts at ${plain(one.default_start || (one.starts || []).join(", "))}</p>`}
          ${[...(one.errors || []), ...(one.warnings || [])].slice(0, 3).map((/** @type {any} */ text) => html`<p class="warn-text">${brief(typeof text === "string" ? text : JSON.stringify(text), 260)}</p>`)}
          <${CopyRequest} method="POST" path=${`/v1/workflows/${one.name}/runs`} body=${{ input: {} }} /></div><//>`)}
    </div>
    ${found.value && !names.length && html`<${Empty} command="astromesh workflow new NAME">No workflow is configured.<//>`}
    ${names.length > 0 && html`<div class="filters">
      <${Select} label="Workflow" value=${workflow} options=${[["", "all"], ...names]} onChange=${(/** @type {string} */ value) => refine({ workflow: value })} />
      <${Select} label="Status" value=${status} options=${[["", "all"], "queued", "running", "success", "failure", "partial"]} onChange=${(/** @type {string} */ value) => refine({ status: value })} />
    </div>
    ${tasks.value?.tasks?.length
      ? html`<${Table} label="Tasks" head=${["Status", "Task", "Workflow", "Outcome", ["Started", "r"]]} rows=${tasks.value.tasks.map((/** @type {any} */ one) => html`
          <tr key=${one.task_id}><td><${Pill} state=${one.status} /></td><td><${Id} id=${one.task_id} href=${link(["tasks", one.task_id])} /></td><td>${plain(one.workflow)}</td>
            <td class="text">${brief(one.error ? `${one.error.code}: ${one.error.message}` : "", 120)}</td><td class="r"><${Ago} at=${one.created_at} /></td></tr>`)} />`
      : tasks.value && html`<${Empty}>No Task matches.<//>`}`}`;
}
