// @ts-check
// Approvals: what waits for a person, with its arguments, and the decision.
import { post } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { refresh, useResource } from "../poll.js";
import { link, place } from "../router.js";
import { Ago, brief, CopyRequest, Empty, Head, Id, Json, plain, Refusal, useAction } from "../ui.js";

const PATH = "/v1/approvals?limit=1000";
/** @type {Record<string, string>} */
const ASKS = {
  approval: "May this call be made?",
  unknown_outcome: "The server stopped during this call. It may have had its effect. Call it again?",
  human: "Your decision",
  interrupt: "Your answer",
  identity: "The token of the caller has expired. Continue?",
};

/** What names a question: its run or Task, and its own id. @param {any} approval */
const idOf = (approval) => [approval.task_id || approval.run_id, approval.id].filter(Boolean).join("/");
/** Where a decision is sent, and what goes with it. @param {any} approval @returns {[string, any]} */
const address = (approval) =>
  [approval.task_id ? `/v1/tasks/${approval.task_id}/decide` : `/v1/runs/${approval.run_id}/resume`, approval.id ? { question: approval.id } : {}];

/** A decision with the reason for it. @param {any} decision @param {string} note */
const noted = (decision, note) => (note.trim() ? { ...decision, note: note.trim() } : decision);

/** @param {any} approval @param {any} decision */
function decide(approval, decision) {
  const [path, more] = address(approval);
  return post(path, { ...decision, ...more });
}

export default function Approvals() {
  const found = useResource(PATH);
  const [chosen, setChosen] = useState(/** @type {Set<string>} */ (new Set()));
  const [note, setNote] = useState("");
  const action = useAction();
  const approvals = found.value?.approvals || [];
  const wanted = place.value.query.run;
  useEffect(() => {
    if (wanted) document.querySelector(`[id^="ask-${CSS.escape(wanted)}"]`)?.scrollIntoView({ block: "center" });
  }, [wanted, approvals.length]);
  const marked = approvals.filter((/** @type {any} */ one) => chosen.has(idOf(one)));
  const all = (/** @type {string} */ decision) =>
    action.run(async () => {
      for (const one of marked) await decide(one, noted({ decision }, note));
      setChosen(new Set());
      refresh("/v1/approvals", "/v1/runs", "/v1/tasks");
    });
  const toggle = (/** @type {string} */ id) => {
    const next = new Set(chosen);
    if (!next.delete(id)) next.add(id);
    setChosen(next);
  };
  return html`
    <${Head} title="Approvals"><span class="grow"></span>
      ${marked.length > 0 && html`<span class="muted">${marked.length} chosen</span>
        <input aria-label="Note for all that are chosen" placeholder="Note" value=${note} onInput=${(/** @type {any} */ event) => setNote(event.target.value)} />
        <button type="button" class="primary" disabled=${action.busy} onClick=${() => all("approve")}>Approve ${marked.length}</button>
        <button type="button" disabled=${action.busy} onClick=${() => all("deny")}>Deny ${marked.length}</button>`}
      <${CopyRequest} path=${PATH} /><//>
    <${Refusal} problem=${found.problem || action.problem} />
    <div class="pane narrow">
      ${found.loading && html`<p class="muted">Loading.</p>`}
      ${found.value && !approvals.length && html`<${Empty}>Nothing waits for a person. A tool with <code>approval: required</code>, or a human node of a graph, asks here.<//>`}
      ${approvals.map((/** @type {any} */ one) => html`<${Decision} key=${idOf(one)} approval=${one} marked=${chosen.has(idOf(one))} onMark=${() => toggle(idOf(one))} />`)}
    </div>`;
}

/** An answer as JSON where it is JSON, else as text. @param {string} text */
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** One open question and its decision. @param {{approval: any, marked?: boolean, onMark?: () => void}} props */
export function Decision({ approval, marked, onMark }) {
  const [edited, setEdited] = useState(/** @type {string | null} */ (null));
  const [answer, setAnswer] = useState("");
  const [note, setNote] = useState("");
  const [wrong, setWrong] = useState("");
  const action = useAction();
  const send = (/** @type {any} */ decision) =>
    action.run(async () => (await decide(approval, noted(decision, note)), refresh("/v1/approvals", "/v1/runs", "/v1/tasks")));
  const approve = () => {
    setWrong("");
    if (edited === null) return send({ decision: "approve" });
    try {
      return send({ decision: "approve", arguments: JSON.parse(edited) });
    } catch (error) {
      return setWrong(`The arguments are not JSON: ${/** @type {Error} */ (error).message}`);
    }
  };
  const edit = () => {
    if (marked) onMark?.(); // decisions for many take the arguments as they were asked
    setEdited(JSON.stringify(approval.arguments ?? {}, null, 2));
  };
  const canAnswer = approval.kind === "human" || approval.kind === "interrupt";
  return html`<section class="ask" id=${`ask-${idOf(approval)}`} aria-label=${`Question of ${approval.asking_agent || approval.agent || approval.workflow || "a run"}`}>
    <div class="title-row">
      ${onMark && edited === null && html`<input type="checkbox" aria-label="Choose this question" checked=${marked} onChange=${onMark} />`}
      <b>${plain(approval.name)}</b><span>${ASKS[approval.kind] || plain(approval.kind)}</span><span class="grow"></span>
      ${approval.expires_at && html`<span class="muted">expires <${Ago} at=${approval.expires_at} /></span>`}
    </div>
    <p class="muted">Asked by ${plain(approval.asking_agent || approval.agent || `${approval.workflow}, stage ${approval.stage}`)}${approval.session_id ? html` in session <a class="link mono" href=${link(["sessions", approval.agent, approval.session_id])}>${brief(approval.session_id, 60)}</a>` : ""}${approval.asked_at ? html`, <${Ago} at=${approval.asked_at} />` : ""} · <${Id} id=${approval.task_id || approval.run_id} href=${approval.task_id ? link(["tasks", approval.task_id]) : link(["runs", approval.run_id])} /></p>
    ${approval.question && html`<p>${plain(approval.question)}</p>`}
    ${edited === null
      ? html`<${Json} value=${approval.arguments ?? {}} />`
      : html`<label class="field"><span>Arguments, as JSON</span><textarea class="mono" rows="6" value=${edited} onInput=${(/** @type {any} */ event) => setEdited(event.target.value)}></textarea></label>`}
    ${canAnswer && html`<label class="field"><span>Answer</span><textarea rows="2" value=${answer} onInput=${(/** @type {any} */ event) => setAnswer(event.target.value)}></textarea></label>`}
    ${wrong && html`<div class="refusal" role="alert">${wrong}</div>`}
    <${Refusal} problem=${action.problem} />
    <label class="field"><span>Note</span><input value=${note} onInput=${(/** @type {any} */ event) => setNote(event.target.value)} /></label>
    <div class="row">
      <button type="button" class="primary" disabled=${action.busy} onClick=${approve}>Approve</button>
      ${approval.kind === "approval" && edited === null && html`<button type="button" onClick=${edit}>Edit the arguments</button>`}
      ${canAnswer && html`<button type="button" disabled=${action.busy || !answer.trim()} onClick=${() => send({ decision: "answer", answer: valueOf(answer) })}>Answer</button>`}
      <button type="button" disabled=${action.busy} onClick=${() => send({ decision: "deny" })}>Deny</button>
    </div>
  </section>`;
}
