// A typed client of astromesh servers, on fetch. The types in schema.ts are generated from the server's OpenAPI
// description; connections and streams are written by hand.
import createFetchClient, { type Client as FetchClient } from "openapi-fetch";
import type { components, paths } from "./schema.js";

export type { components, operations, paths } from "./schema.js";
export type Schemas = components["schemas"];
export type RunBody = Schemas["RunBody"];
export type RunEvent = Schemas["RunEvent"];
export type TaskEvent = Schemas["TaskEvent"];
export type Problem = Schemas["Problem"];
export type Client = FetchClient<paths>;

export interface Options {
  /** Where the server is, e.g. `https://agents.example.com`. */
  baseUrl: string;
  /** An API key or a JSON Web Token; absent: the server needs none. */
  key?: string;
  /** How often a request is repeated after a broken connection, 429 or 503, or a 502 or 504 of a proxy; only if that is safe. Default 3. */
  retries?: number;
  /** In place of the global one. */
  fetch?: typeof fetch;
}

/** The server has answered with an error. `code` stays the same between versions, `detail` is for people. */
export class ApiError extends Error {
  readonly code: string;
  readonly detail: string;
  constructor(readonly status: number, readonly problem: Partial<Problem>, readonly retryAfter?: number) {
    super(`${status} ${problem.code ?? ""}: ${problem.detail ?? ""}`);
    this.code = problem.code ?? "";
    this.detail = problem.detail ?? "";
  }

  /** Whether a proxy has answered in place of the server, as after a broken connection. */
  get isOfProxy(): boolean {
    return [502, 503, 504].includes(this.status) && this.code === "";
  }
}

/** Paths of POST requests that take an `Idempotency-Key`. */
const IDEMPOTENT = /\/v1\/(agents|workflows)\/[^/]+\/runs?$|\/v1\/(runs|tasks)\/[^/]+\/fork$|\/v1\/(chat\/completions|responses)$/;
/** The last event of a run. */
const ENDS = new Set<string>(["run.completed", "run.failed", "run.cancelled"]);
/** Reconnections in a row without a new event, after which a stream throws. */
const MAX_RECONNECTS = 8;

/**
 * Returns a client: `client.GET("/v1/agents/{name}", { params: { path: { name } } })`. An error of the server is
 * thrown as `ApiError`. A request that starts something gets an `Idempotency-Key`, so that a repeat is the same run.
 */
export function connect(options: Options): Client {
  return createFetchClient<paths>({
    baseUrl: options.baseUrl,
    headers: options.key ? { authorization: `Bearer ${options.key}` } : {},
    fetch: (request: Request) => repeated(request, options.retries ?? 3, options.fetch ?? fetch),
  });
}

async function repeated(request: Request, retries: number, send: typeof fetch): Promise<Response> {
  const post = request.method === "POST" && IDEMPOTENT.test(new URL(request.url).pathname);
  if (post && !request.headers.has("idempotency-key")) {
    request.headers.set("idempotency-key", crypto.randomUUID());
  }
  const repeatable = ["GET", "DELETE"].includes(request.method) || request.headers.has("idempotency-key");
  for (let attempt = 0; ; attempt++) {
    let wait: number | undefined;
    try {
      const response = await send(request.clone());
      if (response.status < 400) return isStream(response) ? response : await whole(response);
      const error = await apiError(response);
      const isLate = error.retryAfter !== undefined && [429, 503].includes(error.status);
      if (!isLate || attempt === retries) throw error;
      wait = error.retryAfter;
      if (!repeatable) throw error;
    } catch (error) {
      if (error instanceof ApiError && wait === undefined && !error.isOfProxy) throw error;
      if (request.signal.aborted || !repeatable || attempt === retries) throw error;
    }
    await pause(wait ?? Math.min(0.2 * 2 ** attempt, 5) * (0.5 + Math.random() / 2), request.signal);
  }
}

/** Whether a body is to be read as it comes: events, or lines of JSON. */
function isStream(response: Response): boolean {
  return /^(text\/event-stream|application\/x-ndjson)/.test(response.headers.get("content-type") ?? "");
}

/** Reads the body: a connection may break within it, too. */
async function whole(response: Response): Promise<Response> {
  await response.clone().arrayBuffer();
  return response;
}

async function apiError(response: Response): Promise<ApiError> {
  const problem = (await response.json().catch(() => ({}))) as Partial<Problem>;
  const after = response.headers.get("retry-after") ?? "";
  return new ApiError(response.status, problem, /^\d+$/.test(after) ? Number(after) : undefined);
}

function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)), { once: true });
  });
}

export interface FollowOptions {
  /** The number of the last event that is known; 0: none. */
  after?: number;
  signal?: AbortSignal;
}

/** Starts a durable run of an agent, and yields its events until it ends. */
export async function* streamRun(
  client: Client, name: string, body: RunBody, options: FollowOptions = {},
): AsyncGenerator<RunEvent, void, undefined> {
  const { data } = await client.POST("/v1/agents/{name}/runs", {
    params: { path: { name } }, body, signal: options.signal ?? null,
  });
  yield* followRun(client, data!.run_id, options);
}

/**
 * Yields the events of a run, past and to come, until it ends. After a broken connection it goes on behind the last
 * event: nothing is lost, and nothing comes twice.
 */
export function followRun(client: Client, runId: string, options: FollowOptions = {}): AsyncGenerator<RunEvent, void, undefined> {
  return follow<RunEvent>(options, (headers, signal) =>
    client.GET("/v1/runs/{run_id}/events", {
      params: { path: { run_id: runId } }, headers, signal, parseAs: "stream",
    }),
  );
}

/** Yields the events of a Task of a workflow, as `followRun`. */
export function followTask(client: Client, taskId: string, options: FollowOptions = {}): AsyncGenerator<TaskEvent, void, undefined> {
  return follow<TaskEvent>(options, (headers, signal) =>
    client.GET("/v1/tasks/{task_id}/events", {
      params: { path: { task_id: taskId } }, headers, signal, parseAs: "stream",
    }),
  );
}

type Get = (headers: Record<string, string>, signal: AbortSignal | null) => Promise<{ response: Response }>;

async function* follow<E extends { id: number; event: string }>(
  options: FollowOptions, get: Get,
): AsyncGenerator<E, void, undefined> {
  let last = options.after ?? 0;
  for (let failures = 0; ; ) {
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (last) headers["last-event-id"] = String(last);
      const { response } = await get(headers, options.signal ?? null);
      if (response.status === 204) return;
      for await (const event of decoded<E>(response.body!)) {
        last = event.id;
        failures = 0;
        yield event;
        if (ENDS.has(event.event)) return;
      }
      failures = 0; // a proxy has ended it
    } catch (error) {
      const isRefused = error instanceof ApiError && !error.isOfProxy;
      if (isRefused || options.signal?.aborted || failures >= MAX_RECONNECTS) throw error;
    }
    failures += 1;
    await pause(Math.min(0.1 * 2 ** failures, 5), options.signal);
  }
}

/** Yields the whole events of a stream (WHATWG HTML, 9.2). What is read of an event without its end is void. */
async function* decoded<E>(body: ReadableStream<Uint8Array>): AsyncGenerator<E, void, undefined> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const fields = new Map<string, string>();
        for (const line of text.slice(0, end).split("\n")) {
          const [name, ...rest] = line.split(":");
          fields.set(name!, rest.join(":").replace(/^ /, ""));
        }
        text = text.slice(end + 2);
        if (fields.has("data")) {
          const [id, event] = [Number(fields.get("id")), fields.get("event")];
          yield { id, event, data: JSON.parse(fields.get("data")!) } as E;
        }
      }
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
