// @ts-check
// Requests to the server: JSON, streams of events, and the key of this tab.
import { signal } from "./lib.js";

const KEY = "astromesh-key";
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8_000;

/** The server's root, from the address of the console. A proxy may have put a path before it. */
export const root = location.pathname.replace(/\/console\/.*$/, "");
/** Whether the server has refused the last request for want of a key, or of a better one. */
export const locked = signal(false);
/** Whether the server answers. */
export const online = signal(true);

/** An error as the server reports it (RFC 9457). */
export class Problem extends Error {
  /** @param {number} status @param {Record<string, any>} body */
  constructor(status, body) {
    super(String(body.detail || body.title || `The server answered ${status}.`));
    this.status = status;
    this.code = String(body.code || "");
    this.body = body;
  }
}

export function key() {
  return sessionStorage.getItem(KEY) || "";
}

/** @param {string} value */
export function setKey(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
  locked.value = false;
}

/** @param {Record<string, string>} [more] */
function headers(more = {}) {
  return key() ? { ...more, authorization: `Bearer ${key()}` } : more;
}

/**
 * Sends one request.
 * @param {string} method
 * @param {string} path below the server's root, e.g. `/v1/runs`
 * @param {any} [body] sent as JSON
 * @param {{accept?: string, signal?: AbortSignal, idempotencyKey?: string}} [options]
 * @returns {Promise<any>} the JSON of the answer, or its text where it is not JSON
 * @throws {Problem} where the server refuses, or does not answer (status 0)
 */
export async function request(method, path, body, options = {}) {
  /** @type {Record<string, string>} */
  const sent = headers({ accept: options.accept || "application/json" });
  if (body !== undefined) sent["content-type"] = "application/json";
  if (options.idempotencyKey) sent["idempotency-key"] = options.idempotencyKey;
  const answer = await reach(root + path, {
    method,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: options.signal,
  });
  const text = await answer.text();
  const isJson = /\bjson\b/.test(answer.headers.get("content-type") || "");
  return isJson && text ? JSON.parse(text) : text;
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = (path, signal) => request("GET", path, undefined, { signal });
/** @param {string} path @param {any} [body] @param {string} [idempotencyKey] */
export const post = (path, body, idempotencyKey) => request("POST", path, body ?? {}, { idempotencyKey });
/** @param {string} path */
export const remove = (path) => request("DELETE", path);

/** @param {string} address @param {RequestInit} options */
async function reach(address, options) {
  let answer;
  try {
    answer = await fetch(address, { ...options, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    online.value = false;
    throw new Problem(0, { detail: "The server does not answer. The console tries again by itself." });
  }
  online.value = true;
  if (answer.ok) return answer;
  if (answer.status === 401) locked.value = true;
  throw new Problem(answer.status, await answer.json().catch(() => ({})));
}

/**
 * Follows a stream of events over breaks, restarts of the server included, until it has ended.
 * @param {string} path of the events, e.g. `/v1/runs/ID/events`
 * @param {(event: {seq: number, type: string, data: any}[]) => void} receive gets each event once, in order
 * @param {AbortSignal} signal ends it
 * @param {{after?: number, isLast?: (type: string) => boolean, onProblem?: (problem: Problem) => void}} [options]
 *     `isLast` tells the last event of the stream by its type; `onProblem` hears what the server refuses for good
 */
export async function follow(path, receive, signal, options = {}) {
  let after = options.after || 0;
  let pause = FIRST_PAUSE;
  while (!signal.aborted) {
    let ended = false;
    try {
      const answer = await reach(root + path, {
        headers: headers({ accept: "text/event-stream", "last-event-id": String(after) }),
        signal,
      });
      if (answer.status === 204) return;
      for await (const events of eventsOf(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        const fresh = events.filter((event) => event.seq > after);
        if (!fresh.length) continue;
        pause = FIRST_PAUSE;
        after = fresh[fresh.length - 1].seq;
        ended ||= fresh.some((event) => options.isLast?.(event.type));
        receive(fresh);
      }
    } catch (error) {
      if (signal.aborted) return;
      // a server that starts or ends comes back; anything else it refuses for good
      if (error instanceof Problem && ![0, 502, 503, 504].includes(error.status)) {
        options.onProblem?.(error);
        return;
      }
    }
    if (ended || signal.aborted) return;
    await sleep(pause, signal);
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }
}

/** Reads server-sent events (HTML Standard, section 9.2), those of one chunk together. @param {ReadableStream<Uint8Array>} body */
async function* eventsOf(body) {
  const reader = body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop() || "";
      yield blocks.map(eventOf).filter((event) => event.type);
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {string} block */
function eventOf(block) {
  /** @type {Record<string, string>} */
  const fields = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(":");
    if (at < 1) continue;
    const name = line.slice(0, at);
    const value = line.slice(at + 1).replace(/^ /, "");
    fields[name] = name in fields ? `${fields[name]}\n${value}` : value;
  }
  return { seq: Number(fields.id || 0), type: fields.event || "", data: fields.data ? JSON.parse(fields.data) : null };
}

/** @param {number} ms @param {AbortSignal} [signal] */
export function sleep(ms, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => (clearTimeout(timer), done(undefined)), { once: true });
  });
}

/**
 * The request as a command for a shell.
 * @param {string} method @param {string} path @param {any} [body]
 */
export function asCurl(method, path, body) {
  const words = ["curl", "-sS", quoted(`${location.origin}${root}${path}`)];
  if (method !== "GET") words.splice(2, 0, "-X", method);
  if (key()) words.push("-H", quoted("Authorization: Bearer $ASTROMESH_KEY", '"'));
  if (body !== undefined) words.push("-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(body)));
  return words.join(" ");
}

/** @param {string} text */
function quoted(text, mark = "'") {
  return mark + (mark === "'" ? text.replaceAll("'", `'\\''`) : text) + mark;
}

/**
 * The request in Python.
 * @param {string} method @param {string} path @param {any} [body]
 */
export function asPython(method, path, body) {
  const lines = ["import httpx", ""];
  const options = [];
  if (key()) {
    lines.unshift("import os", "");
    options.push(`headers={"Authorization": f"Bearer {os.environ['ASTROMESH_KEY']}"}`);
  }
  if (body !== undefined) options.push(`json=${pythonValue(body)}`);
  const address = JSON.stringify(`${location.origin}${root}${path}`);
  lines.push(`answer = httpx.${method.toLowerCase()}(${[address, ...options, "timeout=120"].join(", ")})`);
  lines.push("answer.raise_for_status()", "print(answer.json())");
  return lines.join("\n");
}

/** @param {any} value @returns {string} */
function pythonValue(value) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, of]) => `${JSON.stringify(name)}: ${pythonValue(of)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
