// @ts-check
// Chat: a conversation with an agent. Each message is a durable run, so a reload in the middle loses nothing.
import { follow, get, post } from "../api.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib.js";
import { useKeys } from "../keys.js";
import { Markdown } from "../markdown.js";
import { refresh, useResource } from "../poll.js";
import { go, link, place } from "../router.js";
import { emptyStory, isEnd, tell } from "../steps.js";
import { Ago, brief, Citations, CopyRequest, cost, duration, Empty, Failure, Head, Pill, plain, Refusal, tokens, useAction } from "../ui.js";
import { Decision } from "./approvals.js";
import { Graph } from "./run.js";

const GOING_ON = ["queued", "running", "waiting"];
/** So many of the newest turns of a session show their sources. */
const SOURCED = 20;

export default function Chat() {
  const { agent: chosen = "", session = "" } = place.value.query;
  const agents = useResource("/v1/agents", { live: false });
  const ready = (agents.value?.agents || []).filter((/** @type {any} */ one) => one.status !== "unavailable");
  const agent = chosen || ready[0]?.name || "";
  if (agents.problem) return html`<${Head} title="Chat" /><${Refusal} problem=${agents.problem} />`;
  if (!agents.value) return html`<p class="muted pad">Loading.</p>`;
  if (!agent) return html`<${Head} title="Chat" /><${Empty} command="astromesh new PROJECT">No agent is ready. A project with a first agent is made so:<//>`;
  return html`<${Talk} key=${`${agent}/${session}`} agents=${ready} agent=${agent} session=${session} />`;
}

/** @param {{agents: any[], agent: string, session: string}} props */
function Talk({ agents, agent, session }) {
  const [ownSession] = useState(() => session || `chat-${Date.now().toString(36)}`);
  const at = `/v1/agents/${encodeURIComponent(agent)}`;
  const sessions = useResource(`${at}/sessions?limit=200`, { live: false });
  const [turns, setTurns] = useState(/** @type {any[]} */ ([]));
  const [run, setRun] = useState("");
  /** The stored turns that stand before the run that is shown: its own ones come with its events. */
  const [before, setBefore] = useState(Infinity);
  /** The runs of the session, which the buttons of its messages fork. */
  const [runs, setRuns] = useState(/** @type {any[]} */ ([]));
  const [wanted, setWanted] = useState("");
  const action = useAction();
  const talk = useTalk(run);
  const end = useEnd();
  const asked = useRef("");
  /** The files of the newest message. */
  const sent = useRef(/** @type {Attached[]} */ ([]));

  const loadTurns = async () => {
    if (!session) return [];
    const stored = await get(`${at}/sessions/${encodeURIComponent(session)}?limit=1000`).catch(() => ({ turns: [] }));
    return stored.turns;
  };
  const loadRuns = async () => {
    const found = await get(`/v1/runs?limit=1000&agent=${encodeURIComponent(agent)}&session=${encodeURIComponent(session)}`).catch(() => ({ runs: [] }));
    setRuns(found.runs);
    return found.runs;
  };
  useEffect(() => {
    if (!session) return;
    // a run that still goes on, or has stored no turn, is followed from its beginning; its question is not a turn
    loadRuns().then(async (found) => {
      // a fork is no part of the conversation, unless the session is its own
      const last = found.find((/** @type {any} */ one) => !one.forked_from || one.run_id === session);
      const stored = await loadTurns();
      const isStored = last && stored.some((/** @type {any} */ turn) => turn.created_at >= last.created_at);
      if (last && (GOING_ON.includes(last.status) || !isStored)) {
        setBefore(stored.filter((/** @type {any} */ turn) => turn.created_at <= last.created_at).length);
        if (!question) questionOf(last.run_id).then((query) => ((asked.current = query), setRun(last.run_id)));
        else setRun(last.run_id);
      }
      setTurns(stored);
    });
  }, [session]);
  useEffect(() => {
    if (!talk.story.endType) return;
    refresh(`${at}/sessions`, "/v1/approvals");
    loadRuns();
    if (talk.story.endType === "run.completed" && session) {
      loadTurns().then((stored) => {
        if (!stored.length) return; // an agent without memory: the run is all there is
        setTurns(stored);
        setBefore(Infinity);
        setRun("");
      });
    }
  }, [talk.story.endType]);

  const send = (/** @type {string} */ query, /** @type {Attached[]} */ attachments) =>
    action.run(async () => {
      asked.current = query;
      sent.current = attachments;
      end.seek();
      sessionStorage.setItem(`astromesh-question-${agent}/${ownSession}`, query);
      const accepted = await post(`${at}/runs`, { query, session_id: ownSession, ...(attachments.length && { attachments }) }, crypto.randomUUID?.());
      setBefore(turns.length);
      setRun(accepted.run_id);
      if (!session) go(link(["chat"], { agent, session: ownSession }));
    });
  /** Goes on from a message in a session of its own: with another text, or with the same. */
  const branch = (/** @type {string} */ from, /** @type {string} */ query, /** @type {boolean} */ edited) =>
    action.run(async () => {
      const { steps } = await get(`/v1/runs/${encodeURIComponent(from)}/steps`);
      const first = steps.find((/** @type {any} */ step) => step.editable.includes("query"));
      const body = { at: first.step, session: "new", ...(edited && { edit: { query } }) };
      const made = await post(`/v1/runs/${encodeURIComponent(from)}/fork`, body, crypto.randomUUID?.());
      sessionStorage.setItem(`astromesh-question-${agent}/${made.run_id}`, query);
      go(link(["chat"], { agent, session: made.run_id }));
    });
  const question = asked.current || sessionStorage.getItem(`astromesh-question-${agent}/${ownSession}`) || "";
  const isGoingOn = !!run && !talk.story.endType;
  const stop = () => run && action.run(() => post(`/v1/runs/${run}/cancel`));
  useKeys([["Escape", "Stop the answer", () => isGoingOn && stop()]]);
  const state = isGoingOn ? (talk.story.waiting ? "waiting" : "answering") : talk.story.endType === "run.failed" ? "failed" : "";
  const usage = talk.story.end?.metadata?.usage || talk.story.end?.usage;
  const names = agents.map((one) => one.name);
  if (!names.includes(agent)) names.unshift(agent); // an address may name any
  const listed = (sessions.value?.sessions || []).filter((/** @type {any} */ one) => one.session_id.includes(wanted));
  return html`
    <${Head} title=${html`<select class="title-select" aria-label="Agent" onChange=${(/** @type {any} */ event) => go(link(["chat"], { agent: event.target.value }))}>
        ${names.map((one) => html`<option value=${one} selected=${one === agent}>${plain(one)}</option>`)}</select>`}>
      ${state && html`<${Pill} state=${state} />`}<span class="grow"></span>
      ${usage && html`<span class="muted num">${tokens(usage)} tokens · ${cost(usage.cost_usd)}</span>`}
      ${isGoingOn && html`<button type="button" onClick=${stop}>Stop <kbd>Esc</kbd></button>`}
      ${run && html`<a class="button" href=${link(["runs", run])}>Open the run</a>`}
      <a class="button" href=${link(["chat"], { agent })}>New session</a>
      <${CopyRequest} method="POST" path=${`${at}/runs`} body=${{ query: question || "How do I get started?", session_id: ownSession }} />
    <//>
    <div class="chat">
      <aside aria-label="Sessions">
        <label class="field"><span>Session contains</span><input value=${wanted} onInput=${(/** @type {any} */ event) => setWanted(event.target.value)} /></label>
        <${Refusal} problem=${sessions.problem} />
        ${listed.slice(0, 100).map((/** @type {any} */ one) => html`
          <a key=${one.session_id} class=${`sess ${one.session_id === session ? "on" : ""}`} href=${link(["chat"], { agent, session: one.session_id })}>
            <b>${brief(one.session_id, 30)}</b><span class="muted">${one.turns} turns · <${Ago} at=${one.updated_at} /></span></a>`)}
        ${sessions.value && !listed.length && html`<p class="muted">No session ${wanted ? "matches" : "yet"}.</p>`}
      </aside>
      <div class="talk">
        <div class="turns" role="log" aria-label="Conversation" ref=${end.box} onScroll=${end.look}><div>
          ${!turns.length && !run && html`<${Empty}>Ask ${plain(agent)} something. ${plain(agents.find((one) => one.name === agent)?.description || "")}<//>`}
          ${turns.slice(0, before).map((turn, at) => turn.role === "user"
            ? html`<${Question} key=${turn.seq} text=${turn.content} run=${runOf(turn, runs)} busy=${isGoingOn || action.busy} branch=${branch} />`
            : html`<${Turn} key=${turn.seq} turn=${turn} agent=${agent} run=${at >= turns.length - SOURCED ? runOf(turn, runs) : ""} />`)}
          ${run && html`
            ${question && html`<${Question} text=${question} files=${sent.current} run=${run} busy=${isGoingOn || action.busy} branch=${branch} />`}
            <${Answering} agent=${agent} run=${run} talk=${talk} />`}
        </div></div>
        <${Refusal} problem=${action.problem || talk.problem} />
        <${Composer} agent=${agent} busy=${isGoingOn || action.busy} onSend=${send} retry=${question && !isGoingOn ? () => send(question, sent.current) : null} last=${question} />
      </div>
      <aside class="right" aria-label="Steps of the answer">
        <h2>Graph</h2><${Graph} agent=${agent} story=${talk.story} last=${talk.story.last} short />
        <h2>Steps</h2>
        ${talk.story.steps.length
          ? html`<table><tbody>${talk.story.steps.filter((step) => step.kind !== "node").map((step) => html`
              <tr key=${step.id}><td>${plain(step.name)}</td><td class="r num">${step.state === "running" ? "…" : step.state === "failed" ? html`<span class="bad-text">failed</span>` : step.state === "cancelled" ? "cancelled" : duration(step.ms)}</td></tr>`)}</tbody></table>`
          : html`<p class="muted">The steps of an answer stand here while it is made.</p>`}
      </aside>
    </div>`;
}

/** Keeps the end of a box in view whatever grows in it, unless the reader has scrolled up. */
function useEnd() {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  const top = useRef(0);
  const seek = () => {
    isAtEnd.current = true;
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  };
  const look = (/** @type {any} */ { currentTarget: { scrollTop, clientHeight, scrollHeight } }) => {
    if (scrollTop < top.current) isAtEnd.current = false; // what has grown since is not the reader's doing
    if (scrollTop + clientHeight > scrollHeight - 24) isAtEnd.current = true;
    top.current = scrollTop;
  };
  useLayoutEffect(() => {
    const observer = new ResizeObserver(() => isAtEnd.current && seek());
    for (const one of [box.current, box.current?.firstElementChild]) if (one) observer.observe(one);
    return () => observer.disconnect();
  }, []);
  return { box, look, seek };
}

/** @param {string} run */
function useTalk(run) {
  const [, redraw] = useState(0);
  const kept = useRef({ story: emptyStory(), problem: /** @type {any} */ (null) });
  useEffect(() => {
    if (!run) return undefined;
    kept.current = { story: emptyStory(), problem: null };
    const end = new AbortController();
    let drawing = 0;
    const draw = () => {
      drawing ||= requestAnimationFrame(() => {
        drawing = 0;
        redraw((n) => n + 1);
      });
    };
    follow(`/v1/runs/${run}/events`, (events) => (tell(kept.current.story, events), draw()), end.signal, {
      isLast: isEnd,
      onProblem: (problem) => ((kept.current.problem = problem), draw()),
    });
    return () => {
      end.abort();
      cancelAnimationFrame(drawing);
    };
  }, [run]);
  return kept.current;
}

/** The run that has stored a turn. @param {any} turn @param {any[]} runs */
const runOf = (turn, runs) =>
  runs.find((run) => run.created_at <= turn.created_at && run.finished_at && turn.created_at <= run.finished_at)?.run_id || "";

/** What a run was asked, from its record. @param {string} run @returns {Promise<string>} */
const questionOf = (run) =>
  get(`/v1/runs/${encodeURIComponent(run)}/steps/1`).then((step) => step.output?.query || "", () => "");

/** A message of the person, which can be edited and sent again from where it stands.
 * @param {{text: string, run: string, busy: boolean, branch: (run: string, text: string, edited: boolean) => void, files?: Attached[]}} props */
function Question({ text, run, busy, branch, files = [] }) {
  const [edited, setEdited] = useState(/** @type {string | null} */ (null));
  if (edited !== null) {
    return html`<form class="turn user editing" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), branch(run, edited, true))}>
      <textarea rows="3" aria-label="The edited message" value=${edited} onInput=${(/** @type {any} */ event) => setEdited(event.target.value)}></textarea>
      <span class="muted">The answers before it stay; the conversation goes on in a new session.</span>
      <span class="group"><button class="primary" disabled=${busy || !edited.trim() || edited === text}>Send from here</button><button type="button" onClick=${() => setEdited(null)}>Discard</button></span>
    </form>`;
  }
  return html`<div class="asked"><div class="turn user">${plain(text)}</div>
    ${files.length > 0 && html`<span class="muted">${plain(files.map((one) => one.name).join(", "))}</span>`}
    ${run && html`<span class="group"><button type="button" class="quiet small" disabled=${busy} onClick=${() => setEdited(text)}>Edit</button>
      <button type="button" class="quiet small" disabled=${busy} onClick=${() => branch(run, text, false)}>Retry</button></span>`}</div>`;
}

/** @param {{turn: any, agent: string, run: string}} props run: empty for a turn whose sources are not shown */
const Turn = ({ turn, agent, run }) => html`<div class="turn"><div class="by">${plain(turn.role === "assistant" ? agent : turn.role)}${turn.status === "partial" ? " · partial" : ""}</div><${Markdown} text=${turn.content || ""} />
  ${run && html`<${Sources} run=${run} />`}</div>`;

/** What a stored answer draws on. @param {{run: string}} props */
function Sources({ run }) {
  const found = useResource(`/v1/runs/${encodeURIComponent(run)}`, { live: false });
  return html`<${Citations} of=${found.value?.result?.citations} />`;
}

/** The answer that is being made. @param {{agent: string, run: string, talk: any}} props */
function Answering({ agent, run, talk }) {
  const { story } = talk;
  const failed = story.endType === "run.failed" ? story.end : null;
  const text = story.end?.response ?? story.answer;
  return html`
    <div class="turn" aria-busy=${!story.endType}>
      <div class="by">${plain(agent)}</div>
      ${story.steps.filter((/** @type {any} */ step) => step.kind === "tool").map((/** @type {any} */ step) => html`
        <details class="call" key=${step.id}>
          <summary><b>${plain(step.name)}</b> <span class="mono">${brief(JSON.stringify(step.detail.arguments ?? {}), 90)}</span>
            <span class="muted">${step.state === "running" ? "running" : step.state === "failed" ? `failed · ${plain(step.detail.error || "")}` : duration(step.ms)}</span></summary>
          <pre tabindex="0">${plain(JSON.stringify(step.detail, null, 2))}</pre>
        </details>`)}
      ${text && html`<${Markdown} text=${text} />`}
      <${Citations} of=${story.end?.citations} />
      ${!story.endType && !story.waiting && html`<span class="cursor" aria-label="answering"></span>`}
      <${Failure} error=${failed} />
      ${story.endType === "run.cancelled" && html`<p class="muted">Stopped.</p>`}
    </div>
    ${story.waiting && html`<${Decision} approval=${{ run_id: run, ...story.waiting }} />`}`;
}

/** @typedef {{name: string, media_type: string, data: string}} Attached */

/** A file as the route of runs takes it. @param {File} file @returns {Promise<Attached>} */
function attached(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done({ name: file.name, media_type: file.type, data: String(reader.result).split(",")[1] || "" });
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

/** @param {{agent: string, busy: boolean, onSend: (text: string, files: Attached[]) => void, retry: (() => void) | null, last: string}} props */
function Composer({ agent, busy, onSend, retry, last }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState(/** @type {Attached[]} */ ([]));
  const box = useRef(/** @type {HTMLTextAreaElement | null} */ (null));
  useEffect(() => box.current?.focus(), []);
  const send = () => {
    if (busy || !text.trim()) return;
    onSend(text, files);
    setText("");
    setFiles([]);
  };
  const attach = async (/** @type {FileList | null | undefined} */ list) => {
    const read = await Promise.all([...(list || [])].filter((file) => file.size).map(attached));
    setFiles((known) => [...known, ...read]);
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    } else if (event.key === "ArrowUp" && !text && last) setText(last);
  };
  return html`<form class="compose" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), send())}>
    <div class="box">
      ${files.length > 0 && html`<span class="group files">${files.map((one, at) => html`<span class="pill" key=${at}>${brief(one.name, 40)}
        <button type="button" class="quiet small" aria-label=${`Remove ${plain(one.name)}`} onClick=${() => setFiles(files.filter((other) => other !== one))}>×</button></span>`)}</span>`}
      <textarea ref=${box} rows="2" aria-label=${`Message to ${agent}`} placeholder=${`Ask ${agent}. Enter sends, Shift-Enter makes a new line.`} value=${text}
        onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKey}
        onPaste=${(/** @type {ClipboardEvent} */ event) => attach(event.clipboardData?.files)}></textarea>
      <span class="group"><label class="button attach">Attach<input type="file" multiple aria-label="Attach files"
        onChange=${(/** @type {any} */ event) => (attach(event.target.files), (event.target.value = ""))} /></label>${retry && html`<button type="button" onClick=${retry}>Ask again</button>`}<button class="primary" disabled=${busy || !text.trim()}>Send</button></span>
    </div>
  </form>`;
}
