// @ts-check
// Differences of texts by word. Pure functions.

/** @typedef {{text: string, kind: "same" | "removed" | "added"}} Part */

/** Pairs of words that are compared at most; beyond it the texts differ as wholes. */
const MOST_PAIRS = 4_000_000;

/** @param {string} text */
const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

/** What makes `after` of `before`. @param {string} before @param {string} after @returns {Part[]} */
export function wordDiff(before, after) {
  const a = words(before);
  const b = words(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  /** @type {Part[]} */
  const parts = [];
  const add = (/** @type {Part["kind"]} */ kind, /** @type {string} */ text) => {
    const last = parts[parts.length - 1];
    if (last?.kind === kind) last.text += text;
    else if (text) parts.push({ kind, text });
  };
  add("same", a.slice(0, head).join(""));
  middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail), add);
  add("same", a.slice(a.length - tail).join(""));
  return parts;
}

/** The longest common sequence of words. @param {string[]} a @param {string[]} b @param {(kind: Part["kind"], text: string) => void} add */
function middle(a, b, add) {
  if (a.length * b.length > MOST_PAIRS) {
    add("removed", a.join(""));
    add("added", b.join(""));
    return;
  }
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("same", a[i++]);
      j++;
    } else if (j >= b.length || (i < a.length && common[(i + 1) * width + j] >= common[i * width + j + 1])) add("removed", a[i++]);
    else add("added", b[j++]);
  }
}
