// @ts-check
// The frame around every page: places, key, search, shortcuts. Pages are loaded when they are first shown.
import { get, key, locked, online, setKey } from "./api.js";
import { helpOpen, shortcuts, useKeys, walk } from "./keys.js";
import { html, render, signal, useEffect, useLayoutEffect, useRef, useState } from "./lib.js";
import { refresh, useResource } from "./poll.js";
import { go, link, place } from "./router.js";
import { Dialog, plain } from "./ui.js";

/** @type {[string, string, string, string][]} the path of a place, its name, its key behind `g`, and the scope that opens it */
const PLACES = [
  ["home", "Home", "h", ""], ["chat", "Chat", "c", "agents:run"], ["runs", "Runs", "r", "runs:read"], ["approvals", "Approvals", "a", "runs:read"],
  ["workflows", "Workflows", "w", "workflows:read"], ["agents", "Agents", "g", "agents:read"], ["sessions", "Sessions", "s", "sessions:read"],
  ["knowledge", "Knowledge", "k", "rag:query"], ["evaluations", "Evaluations", "e", "evaluations:read"], ["system", "System", "y", ""],
];
/** Whether scopes open a place: literally, by family, for one name, or as `admin`. @param {string[]} scopes @param {string} wanted */
const permits = (scopes, wanted) =>
  !wanted || scopes.includes("admin") || scopes.includes(`${wanted.split(":")[0]}:*`) || scopes.some((one) => one === wanted || one.startsWith(`${wanted}:`));
/** @type {Record<string, () => Promise<{default: any}>>} */
const PAGES = {
  home: () => import("./pages/home.js"),
  chat: () => import("./pages/chat.js"),
  runs: () => import("./pages/runs.js"),
  run: () => import("./pages/run.js"),
  compare: () => import("./pages/compare.js"),
  approvals: () => import("./pages/approvals.js"),
  workflows: () => import("./pages/workflows.js"),
  task: () => import("./pages/task.js"),
  agents: () => import("./pages/agents.js"),
  agent: () => import("./pages/agent.js"),
  sessions: () => import("./pages/sessions.js"),
  session: () => import("./pages/session.js"),
  knowledge: () => import("./pages/knowledge.js"),
  evaluations: () => import("./pages/evaluations.js"),
  evaluation: () => import("./pages/evaluation.js"),
  system: () => import("./pages/system.js"),
};
/** The page behind a path of two: `runs/ID` is `run`. @type {Record<string, string>} */
const SINGLE = { runs: "run", agents: "agent", sessions: "session", tasks: "task", evaluations: "evaluation" };
/** The place of a page that has none of its own. @type {Record<string, string>} */
const WITHIN = { compare: "runs", tasks: "workflows" };
const searchOpen = signal(false);

function App() {
  const { path } = place.value;
  const first = path[0] || "home";
  const name = path.length > 1 && SINGLE[first] ? SINGLE[first] : first;
  const [page, setPage] = useState(/** @type {{name: string, View: any} | null} */ (null));
  useEffect(() => {
    let gone = false;
    const load = PAGES[name];
    if (!load) setPage({ name, View: NoPage });
    else load().then(({ default: View }) => gone || setPage({ name, View }), () => gone || setPage({ name, View: NotLoaded }));
    return () => {
      gone = true;
    };
  }, [name]);
  useEffect(() => {
    document.title = `${[...path].reverse().map((part) => plain(part)).join(" · ") || "home"} · astromesh`;
  }, [path.join("/")]);
  /** @type {[string, string, () => void][]} */
  const moves = PLACES.map(([to, label, letter]) => [`g ${letter}`, `Go to ${label}`, () => go(link([to]))]);
  useKeys([
    ["/", "Search", () => (searchOpen.value = true)],
    ["?", "List the keys", () => (helpOpen.value = true)],
    ["j", "Next row", () => walk(1)],
    ["k", "Previous row", () => walk(-1)],
    ...moves,
  ]);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the page</a>
    <${Places} current=${WITHIN[first] || first} />
    <main id="main" tabindex="-1">
      ${!online.value && html`<div class="banner" role="status">The server does not answer. The console tries again by itself.</div>`}
      ${page && page.name === name ? html`<${page.View} key=${path.join("/")} path=${path} />` : html`<p class="muted pad">Loading.</p>`}
    </main>
    ${locked.value && html`<${KeyDialog} />`}
    ${helpOpen.value && html`<${Help} />`}
    ${searchOpen.value && html`<${Search} />`}`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{current: string}} props */
function Places({ current }) {
  const approvals = useResource("/v1/approvals?limit=100");
  const waiting = approvals.value?.approvals?.length || 0;
  const live = useResource("/health/live", { live: false });
  const caller = useResource("/v1/caller", { live: false });
  const places = PLACES.filter(([, , , scope]) => !caller.value || permits(caller.value.scopes, scope));
  useEffect(() => document.querySelector("nav .on")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [current, places.length, waiting]);
  return html`<nav aria-label="Places">
    <a class="brand" href=${link(["home"])}><img src="icon.svg" alt="" width="18" height="18" /> astromesh</a>
    ${places.map(([to, label]) => html`
      <a href=${link([to])} class=${current === to ? "on" : ""} aria-current=${current === to ? "page" : undefined}>
        ${label}${to === "approvals" && waiting > 0 && html`<span class="count" title="Waiting for a person">${waiting}</span>`}
      </a>`)}
    <div class="foot">
      <span>${live.value ? `astromesh ${live.value.version}` : ""}</span>
      ${key() && html`<button type="button" class="quiet" onClick=${() => (setKey(""), location.reload())}>Forget the key</button>`}
      <button type="button" class="quiet" onClick=${() => (helpOpen.value = true)}>Keys <kbd>?</kbd></button>
    </div>
  </nav>`;
}

function KeyDialog() {
  const [value, setValue] = useState("");
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    setKey(value.trim());
    refresh("/");
    get("/v1/caller").then(() => location.reload(), () => {});
  };
  return html`<${Dialog} title="This server asks for a key" onClose=${() => (locked.value = false)}>
    <form class="pane" onSubmit=${save}>
      <p>The key stays in this tab and is forgotten with it. <code>astromesh keys create</code> makes one.</p>
      <label class="field"><span>API key or token</span>
        <input type="password" autocomplete="off" required value=${value} onInput=${(/** @type {any} */ event) => setValue(event.target.value)} /></label>
      <div><button class="primary">Use this key</button></div>
    </form>
  <//>`;
}

function Help() {
  const listed = new Map(shortcuts.value.map((one) => [one.keys, one])); // those of a view stand for those of the frame
  return html`<${Dialog} title="Keys" onClose=${() => (helpOpen.value = false)}>
    <table class="pane-table"><tbody>
      ${[...listed.values()].map((one) => html`<tr><td>${one.keys.split(" ").map((part) => html`<kbd>${part}</kbd> `)}</td><td>${one.does}</td></tr>`)}
    </tbody></table>
  <//>`;
}

/** Finds agents by name, and opens runs and sessions by id. */
function Search() {
  const [text, setText] = useState("");
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const agents = useResource("/v1/agents", { live: false });
  useLayoutEffect(() => input.current?.focus(), []);
  const wanted = text.trim();
  /** @type {[string, string][]} */
  const found = [];
  if (/^run_\w+$/.test(wanted)) found.push([`Run ${wanted}`, link(["runs", wanted])]);
  if (/^task_\w+$/.test(wanted)) found.push([`Task ${wanted}`, link(["tasks", wanted])]);
  for (const agent of agents.value?.agents || []) {
    if (wanted && [agent.name, agent.display_name, agent.description].join(" ").toLowerCase().includes(wanted.toLowerCase())) {
      found.push([`Agent ${agent.name}`, link(["agents", agent.name])]);
    }
  }
  if (wanted) found.push([`Runs of session ${wanted}`, link(["runs"], { session: wanted })]);
  const open = (/** @type {string} */ address) => {
    searchOpen.value = false;
    go(address);
  };
  return html`<${Dialog} title="Search" onClose=${() => (searchOpen.value = false)}>
    <form class="pane" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), found[0] && open(found[0][1]))}>
      <label class="field"><span>An agent, or the id of a run, Task or session</span>
        <input ref=${input} value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
      <ul class="found">${found.slice(0, 12).map(([label, address]) => html`
        <li><button type="button" class="quiet" onClick=${() => open(address)}>${plain(label)}</button></li>`)}</ul>
    </form>
  <//>`;
}

/** In place of a page whose file did not come. A browser keeps what it could not import until the document is loaded anew. */
function NotLoaded() {
  const wasGone = useRef(false);
  wasGone.current ||= !online.value;
  const isBack = wasGone.current && online.value;
  useEffect(() => {
    if (isBack) location.reload();
  }, [isBack]);
  return html`<header><h1>Not loaded</h1></header>
    <div class="empty"><p>The server has not sent this page.</p><button type="button" onClick=${() => location.reload()}>Load it again</button></div>`;
}

const NoPage = () => html`<header><h1>No such page</h1></header>
  <div class="empty"><p>The console has no page here.</p><a class="link" href=${link(["home"])}>Home</a></div>`;

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.replaceChildren();
render(html`<${App} />`, root);
