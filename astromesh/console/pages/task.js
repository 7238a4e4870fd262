// @ts-check
// One Task of a workflow: its stages as they happen, its recorded steps and artifacts; pause, step, resume, cancel, replay, fork.
import { follow, get, post } from "../api.js";
import { MakeCase } from "../case.js";
import { Diagram, fromMermaid } from "../diagram.js";
import { useKeys } from "../keys.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { refresh, useResource } from "../poll.js";
import { rowsOfSteps } from "../recording.js";
import { chosenTab, link, place, refine } from "../router.js";
import { RecordedStep } from "../step.js";
import { Ago, Confirm, CopyRequest, duration, Empty, Fact, Failure, Head, Id, Json, Pill, plain, Refusal, Table, Tabs, useAction, Waits } from "../ui.js";
import { Steps, StepTitle } from "./run.js";

const TABS = ["Stages", "Steps", "Task", "History", "Artifacts"];

/** @param {{path: string[]}} props */
export default function Task({ path: [, id] }) {
  const path = `/v1/tasks/${encodeURIComponent(id)}`;
  const found = useResource(path);
  const tab = chosenTab(TABS);
  const trace = useResource(tab === "History" ? `${path}/trace` : "");
  const artifacts = useResource(tab === "Artifacts" ? `${path}/artifacts` : "");
  const stages = useStages(path);
  const action = useAction();
  const [replayed, setReplayed] = useState(/** @type {any} */ (null));
  const act = (/** @type {string} */ verb, body = {}) => action.run(async () => {
    const answer = await post(`${path}/${verb}`, body);
    if (verb === "replay") setReplayed(answer);
    refresh(path, "/v1/tasks");
  });
  const task = found.value;
  /** The state of a stage that has not ended stands in the Task: it may wait or be paused. @param {any} one */
  const stateOf = (one) =>
    (one.status === "running" && task?.stages?.find((/** @type {any} */ now) => now.stage === one.stage && now.task === one.task.slice(id.length))?.state) || one.status;
  const isGoingOn = task && ["queued", "running", "waiting", "paused"].includes(task.status);
  return html`
    <${Head} trail=${[["Workflows", link(["workflows"])]]} title=${html`<${Id} id=${id} />`}>
      ${task && html`<${Pill} state=${task.status} />`}<span class="grow"></span>
      ${isGoingOn && html`
        <button type="button" disabled=${action.busy} onClick=${() => act("pause")}>Pause</button>
        <button type="button" disabled=${action.busy} onClick=${() => act("step")}>Step</button>
        <button type="button" disabled=${action.busy} onClick=${() => act("resume")}>Resume</button>
        <${Confirm} label="Cancel the Task" question="Cancel it and its descendants?" disabled=${action.busy} onYes=${() => act("cancel")} />`}
      ${task && !isGoingOn && html`<button type="button" disabled=${action.busy} onClick=${() => act("replay")}>Replay offline</button><${MakeCase} id=${id} />`}
      <${CopyRequest} path=${path} /><//>
    <${Refusal} problem=${found.problem || action.problem} />
    ${task && html`<div class="facts">
      <${Fact} name="Workflow"><a class="link" href=${link(["workflows"], { workflow: task.workflow })}>${plain(task.workflow)}</a><//><${Fact} name="Accepted"><${Ago} at=${task.created_at} /><//>
      ${task.state && html`<${Fact} name="State">${plain(task.state)}<//>`}
      ${task.forked_from && html`<${Fact} name=${`Fork at step ${task.forked_from.step}${task.forked_from.edit ? `, ${task.forked_from.edit} edited` : ""}`}>
        <${Id} id=${task.forked_from.task_id} href=${link(["tasks", task.forked_from.task_id], { tab: "Steps", step: task.forked_from.step })} /><//>`}
      ${task.path && html`<${Fact} name="Path">${plain(Array.isArray(task.path) ? task.path.join(" → ") : task.path)}<//>`}
    </div>`}
    <${Failure} error=${task?.error} />
    ${(task?.waiting_for || []).map((/** @type {any} */ one) => html`<${Waits} key=${one.id} of=${one} />`)}
    <${Tabs} tabs=${TABS} chosen=${tab} onChoose=${(/** @type {string} */ to) => refine({ tab: to })} />
    ${replayed && html`<div class="pane"><h2>Replay</h2><${Json} value=${replayed} /></div>`}
    ${tab === "Stages" && html`<${Workflow} path=${path} stages=${stages} current=${task?.stages || []} />`}
    ${tab === "Stages" && (stages.length
      ? html`<${Table} label="Stages" head=${["State", "Stage", ["Took", "r"], "Error", ["Action", "r"]]} rows=${byTask(stages).map(([of, own]) => html`
          ${of !== id && html`<tr key=${of} class="of"><th scope="rowgroup" colspan="5">Clone or subtask ${plain(of.slice(id.length))}</th></tr>`}
          ${own.map((one) => html`
            <tr key=${`${one.task}/${one.stage}/${one.seq}`}><td><${Pill} state=${stateOf(one)} /></td><td>${plain(one.stage)}</td>
              <td class="r num">${duration(one.ms)}</td><td class="text">${plain(typeof one.error === "string" ? one.error : one.error ? JSON.stringify(one.error) : "")}</td>
              <td class="r">${task && !isGoingOn && html`<button type="button" disabled=${action.busy} aria-label=${`Replay the stage ${plain(one.stage)}`} onClick=${() => act("replay", { stage: one.stage, task: one.task.slice(id.length) })}>Replay</button>`}</td></tr>`)}`)} />`
      : task && html`<${Empty}>No stage has begun, or the events are gone.<//>`)}
    ${task && tab === "Steps" && html`<${Recorded} id=${id} task=${task} canFork=${!isGoingOn} />`}
    ${task && tab === "Task" && html`<div class="pane"><${Json} value=${task} /></div>`}
    <${Refusal} problem=${trace.problem || artifacts.problem} />
    ${tab === "History" && trace.value && html`<div class="pane"><${Json} value=${trace.value} /></div>`}
    ${tab === "Artifacts" && artifacts.value && html`<div class="pane"><${Json} value=${artifacts.value} /></div>`}`;
}

/** The stages of each Task in the order of its first one. @param {any[]} stages @returns {[string, any[]][]} */
function byTask(stages) {
  /** @type {Map<string, any[]>} */
  const found = new Map();
  for (const one of stages) found.set(one.task, [...(found.get(one.task) || []), one]);
  return [...found];
}

/** The workflow with the state of each stage. Clones and subtasks are at the stages that they have in common.
 * @param {{path: string, stages: any[], current: any[]}} props current: what waits or is paused now */
function Workflow({ path, stages, current }) {
  const [drawing, setDrawing] = useState(/** @type {any} */ (null));
  useEffect(() => {
    get(`${path}/graph`).then((text) => setDrawing(fromMermaid(text)), () => setDrawing(null));
  }, [path]);
  if (!drawing) return null;
  /** @type {Map<string, {count: number, running: number, failed: number}>} */
  const seen = new Map();
  for (const { stage, status } of stages) {
    const { count = 0, running = 0, failed = 0 } = seen.get(stage) || {};
    seen.set(stage, { count: count + 1, running: running + Number(status === "running"), failed: failed + Number(status === "failure") });
  }
  const waits = new Set(current.filter((one) => one.state !== "running").map((one) => one.stage));
  const nodes = drawing.nodes.map((/** @type {any} */ node) => {
    const stage = node.label.split(" · ")[0];
    const { count = 0, running = 0, failed = 0 } = seen.get(stage) || {};
    const state = waits.has(stage) ? "wait" : running ? "lit" : failed ? "bad" : count ? "done" : "";
    return { ...node, label: count > 1 ? `${node.label} × ${count}` : node.label, state };
  });
  return html`<${Diagram} label="The workflow" nodes=${nodes} edges=${drawing.edges} across />`;
}

/** The recorded steps, of which each can be forked when the Task has ended. @param {{id: string, task: any, canFork: boolean}} props */
function Recorded({ id, task, canFork }) {
  const found = useResource(`/v1/tasks/${encodeURIComponent(id)}/steps`);
  const steps = found.value?.steps;
  const forkedAt = task.forked_from?.step || 0;
  const rows = useMemo(() => rowsOfSteps(steps || [], forkedAt), [steps, forkedAt]);
  const wanted = Number(place.value.query.step || forkedAt);
  const at = Math.max(0, rows.findIndex((row) => row.number === wanted));
  const choose = (/** @type {number} */ to) => refine({ step: rows[Math.max(0, Math.min(to, rows.length - 1))]?.number });
  const [draft, setDraft] = useState(/** @type {any} */ (null));
  useKeys([["j", "Next step", () => choose(at + 1)], ["k", "Previous step", () => choose(at - 1)]]);
  return html`<${Refusal} problem=${found.problem} />
    ${rows.length > 0 && html`<${Steps} rows=${rows} at=${at} choose=${choose} waiting=${null}>
      <${RecordedStep} page="tasks" id=${id} chosen=${rows[at].recorded} draft=${draft} setDraft=${setDraft} canFork=${canFork}>
        <${StepTitle} step=${rows[at]} at=${at} of=${rows.length} /><//><//>`}`;
}

/** The stages of a Task and its descendants, from its events, which also bring what waits or is paused. @param {string} path */
function useStages(path) {
  const [, redraw] = useState(0);
  const stages = useRef(/** @type {any[]} */ ([]));
  useEffect(() => {
    const end = new AbortController();
    stages.current = [];
    follow(`${path}/events`, (events) => {
      for (const { seq, type, data } of events) {
        if (type === "stage.started") stages.current.push({ ...data, status: "running", seq });
        else if (type === "stage.finished") {
          const open = [...stages.current].reverse().find((one) => one.stage === data.stage && one.task === data.task && one.status === "running");
          if (open) Object.assign(open, { status: data.status, ms: data.duration_ms, error: data.error });
        }
      }
      stages.current = [...stages.current]; // what gets them is drawn again when they are others
      refresh(path);
      redraw((n) => n + 1);
    }, end.signal);
    return () => end.abort();
  }, [path]);
  return stages.current;
}
