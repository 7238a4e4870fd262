// @ts-check
// A run's events, folded into the steps that people look at. A pure function: the same events give the same steps.

/**
 * @typedef {{id: string, kind: "rule" | "memory" | "prompt" | "model" | "tool" | "node" | "agent" | "person", name: string,
 *     state: "running" | "completed" | "failed" | "cancelled" | "waiting", ms?: number, detail: any, text?: string, seq: number, last: number}} Step
 * @typedef {{steps: Step[], byId: Map<string, Step>, answer: string, answerStep: number, end: any, endType: string, waiting: any, last: number}} Story
 */

/** @returns {Story} */
export function emptyStory() {
  return { steps: [], byId: new Map(), answer: "", answerStep: 0, end: null, endType: "", waiting: null, last: 0 };
}

export const ENDS = new Set(["run.completed", "run.failed", "run.cancelled"]);
/** @param {string} type */
export const isEnd = (type) => ENDS.has(type);

/** Adds events to a story, in place. @param {Story} story @param {{seq: number, type: string, data: any}[]} events */
export function tell(story, events) {
  for (const event of events) {
    story.last = event.seq;
    const act = TELL[event.type];
    if (act) act(story, event.data || {}, event.seq);
    else if (isEnd(event.type)) {
      story.end = event.data;
      story.endType = event.type;
      story.waiting = null;
      for (const step of story.steps) if (step.state === "running" || step.state === "waiting") step.state = /** @type {Step["state"]} */ (event.type.slice(4));
    }
  }
  return story;
}

/** @param {Story} story @param {string} id @param {Step["kind"]} kind @param {string} name @param {number} seq @param {any} detail */
function begin(story, id, kind, name, seq, detail) {
  /** @type {Step} */
  const step = { id, kind, name, state: "running", detail, seq, last: seq };
  story.steps.push(step);
  story.byId.set(id, step);
  return step;
}

/** @param {Story} story @param {string} id @param {number} seq @param {Partial<Step>} changes @param {any} detail */
function finish(story, id, seq, changes, detail) {
  const step = story.byId.get(id);
  if (!step) return;
  Object.assign(step, { state: "completed", last: seq }, changes);
  step.detail = { ...step.detail, ...detail };
}

/** @type {Record<string, (story: Story, data: any, seq: number) => void>} */
const TELL = {
  "guardrails.checked": (story, data, seq) => {
    const step = begin(story, `r${seq}`, "rule", `${data.stage === "input" ? "Input" : "Output"} rules`, seq, data);
    Object.assign(step, { state: "completed", ms: data.duration_ms });
    if (data.actions) step.name += ` · ${data.actions} ${data.actions === 1 ? "action" : "actions"}`;
  },
  "guardrail.action": (story, data, seq) => {
    Object.assign(begin(story, `r${seq}`, "rule", `${data.type}: ${data.action}`, seq, data), { state: "completed" });
  },
  "memory.loaded": (story, data, seq) => {
    Object.assign(begin(story, `m${seq}`, "memory", `Memory · ${data.turns} turns`, seq, data), { state: "completed", ms: data.duration_ms });
  },
  "memory.persisted": (story, data, seq) => {
    Object.assign(begin(story, `m${seq}`, "memory", `Turns stored · ${data.turns}`, seq, data), { state: "completed", ms: data.duration_ms });
  },
  "prompt.rendered": (story, data, seq) => {
    Object.assign(begin(story, `p${seq}`, "prompt", `Prompt · ${data.characters} characters`, seq, data), { state: "completed", ms: data.duration_ms });
  },
  "node.started": (story, data, seq) => {
    begin(story, `n${data.node}`, "node", data.node, seq, data);
  },
  "node.finished": (story, data, seq) => finish(story, `n${data.node}`, seq, { ms: data.duration_ms }, data),
  "node.failed": (story, data, seq) => finish(story, `n${data.node}`, seq, { state: "failed" }, data),
  "model.started": (story, data, seq) => {
    begin(story, `s${data.step}`, "model", data.role === "assistant" ? "Model" : `Model · ${data.role}`, seq, data);
    if (data.role === "assistant" && data.step !== story.answerStep) {
      story.answer = "";
      story.answerStep = data.step;
    }
  },
  "model.restarted": (story, data) => {
    const step = story.byId.get(`s${data.step}`);
    if (step) step.text = "";
    if (data.step === story.answerStep) story.answer = "";
  },
  "model.commentary": (story, data) => {
    if (data.step === story.answerStep) story.answer = "";
  },
  "model.delta": (story, data, seq) => {
    const step = story.byId.get(`s${data.step}`);
    if (step) {
      step.text = (step.text || "") + data.content;
      step.last = seq;
    }
    if (data.role !== "assistant") return;
    if (data.step !== story.answerStep) {
      story.answer = "";
      story.answerStep = data.step;
    }
    story.answer += data.content;
  },
  "model.finished": (story, data, seq) => {
    const calls = data.tool_calls ? ` · calls ${data.tool_calls === 1 ? "a tool" : `${data.tool_calls} tools`}` : "";
    finish(story, `s${data.step}`, seq, { name: `${data.model || data.provider}${calls}`, ms: data.duration_ms }, data);
  },
  "model.failed": (story, data, seq) => finish(story, `s${data.step}`, seq, { state: "failed", ms: data.duration_ms }, data),
  "tool.started": (story, data, seq) => {
    begin(story, `t${data.id}`, "tool", data.name, seq, data);
  },
  "tool.progress": (story, data, seq) => finish(story, `t${data.id}`, seq, { state: "running" }, { progress: data }),
  "tool.finished": (story, data, seq) =>
    finish(story, `t${data.id}`, seq, { state: data.ok ? "completed" : "failed", ms: data.duration_ms }, data),
  "run.waiting": (story, data, seq) => {
    story.waiting = data.approval;
    const called = story.byId.get(`t${/\/tool:([^/]+)\/[^/]*$/.exec(data.approval?.path || "")?.[1]}`);
    if (called) called.state = "waiting"; // the call is made after the approval
    begin(story, `w${seq}`, "person", `Waits for a person · ${data.approval?.name || ""}`, seq, data).state = "waiting";
  },
  "run.resumed": (story, data, seq) => {
    story.waiting = null;
    for (const step of story.steps) {
      if (step.state === "waiting") Object.assign(step, { state: step.kind === "tool" ? "running" : "completed", last: seq, detail: { ...step.detail, ...data } });
    }
  },
};
