// @ts-check
// The record of a run: its steps as rows of a waterfall, and what a fork at a step can edit. Pure functions.

/**
 * @typedef {{step: number, path: string, kind: string, name: string, started_at: number, duration_ms: number, usage: any, editable: string[]}} Recorded
 * @typedef {{label: string, rows: number, begin: (step: any) => string, value: (text: string) => any}} Edit
 *     what the button says, the height of the field, its first text, and what is sent
 */

/** The depth of a step in the tree of a run. @param {Recorded} step */
function depthOf({ path, kind }) {
  const parts = path.split("/").filter((part) => !part.startsWith("run:")).length;
  return kind === "model" ? parts : parts - 1;
}

/** @param {Recorded} step */
function nameOf({ kind, name, path }) {
  if (kind === "rule") return name === "input" ? "Input rules" : "Output rules";
  if (kind === "memory") return "Memory";
  if (kind === "prompt") return "Prompt";
  return name || path;
}

/**
 * Steps in the order in which they began. A fork's steps before `forkedAt` are those of another run: they have no bar.
 * @param {Recorded[]} steps @param {number} forkedAt 0: not a fork
 */
export function rowsOfSteps(steps, forkedAt) {
  const own = steps.filter((step) => step.step >= forkedAt);
  const start = own.reduce((least, step) => Math.min(least, step.started_at), Infinity);
  const whole = own.reduce((most, step) => Math.max(most, (step.started_at - start) * 1000 + step.duration_ms), 0.001);
  const isOld = (/** @type {Recorded} */ step) => step.step < forkedAt;
  const order = (/** @type {Recorded} */ a, /** @type {Recorded} */ b) =>
    Number(isOld(b)) - Number(isOld(a)) || a.started_at - b.started_at || depthOf(a) - depthOf(b) || a.step - b.step;
  return [...steps].sort(order).map((step) => ({
    number: step.step, name: nameOf(step), kind: step.kind, state: isOld(step) ? "recorded" : "", ms: step.duration_ms, depth: depthOf(step),
    left: isOld(step) ? 0 : (((step.started_at - start) * 1000) / whole) * 100, width: isOld(step) ? 0 : (step.duration_ms / whole) * 100, recorded: step,
  }));
}

/** A JSON value where the text is one, else the text. @param {string} text */
export function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** A text as it is, anything else as JSON to read. @param {any} value */
export const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");

/** JSON in a text, indented; other texts as they are. @param {any} value */
export function readable(value) {
  const found = typeof value === "string" ? valueOf(value) : value;
  return typeof found === "object" && found !== null ? JSON.stringify(found, null, 2) : textOf(value);
}

/** What a model said, as a fork takes it: a text, or its tool calls. @param {any} step */
export function answerOf({ output }) {
  const calls = (output?.tool_calls || []).map((/** @type {any} */ call) => ({ name: call.name, arguments: valueOf(call.arguments) }));
  return calls.length ? { content: output.content, tool_calls: calls } : output?.content ?? "";
}

/** @param {any} step */
export const messagesOf = (step) => (step.kind === "prompt" ? step.output?.messages : step.input?.messages) || [];

const asText = (/** @type {string} */ text) => text;
/** What a fork of a model's answer sends: an object is an answer only if it has the keys of one. @param {string} text */
function answer(text) {
  const value = valueOf(text);
  return value && typeof value === "object" && ("tool_calls" in value || "content" in value) ? value : text;
}

/** @type {Record<string, Edit>} every edit of the route; `output:node` is that of a node */
const EDITS = {
  query: { label: "Edit the message", rows: 4, begin: (step) => step.output?.query ?? "", value: asText },
  system: {
    label: "Edit the system message", rows: 8, value: asText,
    begin: (step) => messagesOf(step).find((/** @type {any} */ one) => one.role === "system")?.content ?? "",
  },
  message: { label: "Add a message", rows: 3, begin: () => "", value: asText },
  output: { label: "Edit the answer", rows: 8, begin: (step) => textOf(answerOf(step)), value: answer },
  tool_result: { label: "Edit the result", rows: 8, begin: (step) => readable(step.output?.value ?? step.output?.content ?? ""), value: valueOf },
  "output:node": { label: "Edit the output", rows: 8, begin: (step) => textOf(step.output?.result?.output ?? step.output?.result?.response ?? ""), value: valueOf },
  "query:stage": { label: "Edit the input", rows: 6, begin: (step) => textOf(step.input?.input ?? ""), value: valueOf },
  "output:stage": { label: "Edit the output", rows: 8, begin: (step) => textOf(step.output?.output ?? ""), value: valueOf },
  "state:stage": { label: "Change values of the output", rows: 6, begin: (step) => textOf(step.output?.output ?? {}), value: valueOf },
  state: { label: "Change the state", rows: 6, begin: (step) => textOf(step.output?.state ?? step.output?.writes ?? {}), value: valueOf },
  model: { label: "Another model", rows: 1, begin: () => "", value: valueOf },
  manifest: { label: "Present manifest", rows: 0, begin: () => "current", value: asText },
};

/** @param {string} kind of the step @param {string} edit @returns {Edit} */
export const editOf = (kind, edit) => EDITS[`${edit}:${kind}`] || EDITS[edit];
