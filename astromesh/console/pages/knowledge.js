// @ts-check
// Knowledge: which passages a question finds, with their scores, how well that works over files of questions, and the
// documents of a pipeline.
import { post } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Ago, Card, CopyRequest, count, duration, Empty, Head, Json, Pill, plain, Refusal, Select, Table, useAction } from "../ui.js";

/** Whose documents: the choice, and why there are none. @type {Record<string, [string, string]>} */
const OWNERS = {
  tenant: ["your tenant", "Your tenant has sent no documents."],
  sources: ["the folders", "There are no documents in the pipeline's folders."],
  shared: ["a tenant that shares", "No other tenant shares documents here."],
};
/** @type {[string, string][]} */
const CHOICES = Object.entries(OWNERS).map(([of, [text]]) => [of, text]);

export default function Knowledge() {
  const ready = useResource("/health/ready", { live: false });
  const checks = (ready.value || ready.problem?.body)?.checks; // a server that is not ready has pipelines, too
  const names = Object.keys(checks || {}).filter((name) => name.startsWith("store:rag:")).map((name) => name.slice(10));
  const pipeline = place.value.query.pipeline || names[0] || "";
  const [query, setQuery] = useState(place.value.query.query || "");
  const [found, setFound] = useState(/** @type {any} */ (null));
  const action = useAction();
  const path = `/v1/rag/${encodeURIComponent(pipeline)}/query`;
  const search = () => action.run(async () => setFound(await post(path, { query, top_k: 10 })));
  const ask = (/** @type {Event} */ event) => {
    event.preventDefault();
    refine({ query, pipeline });
    search();
  };
  useEffect(() => {
    setFound(null);
    if (pipeline && place.value.query.query) search(); // an address finds what it found before
  }, [pipeline]);
  const passages = found?.passages || [];
  return html`
    <${Head} title="Knowledge"><span class="grow"></span>${pipeline && html`<${CopyRequest} method="POST" path=${path} body=${{ query: query || "reset password", top_k: 10 }} />`}<//>
    ${checks && !names.length
      ? html`<${Empty} command="astromesh rag ingest PIPELINE">No pipeline is configured. A file <code>rag/NAME.rag.yaml</code> makes one.<//>`
      : html`<form class="filters" onSubmit=${ask}>
          <${Select} label="Pipeline" value=${pipeline} options=${names} onChange=${(/** @type {string} */ value) => refine({ pipeline: value, after: "" })} />
          <label class="field wide-field"><span>Question</span><input required value=${query} onInput=${(/** @type {any} */ event) => setQuery(event.target.value)} /></label>
          <button class="primary" disabled=${action.busy || !query.trim()}>Search</button>
        </form>`}
    <${Refusal} problem=${action.problem} />
    <div class="pane narrow">
      ${passages.map((/** @type {any} */ one, /** @type {number} */ at) => html`
        <${Card} key=${at} title=${html`${at + 1}. <a class="link" href=${link(["knowledge"], { pipeline, document: one.document, start: one.start, end: one.end })}>${plain(one.document)}</a>`} more=${html`<span class="muted num">score ${Number(one.score ?? 0).toFixed(3)}</span>`}>
          <div class="pad"><p class="passage">${plain(one.text)}</p><details><summary class="muted">All that is known of it</summary><${Json} value=${one} /></details></div><//>`)}
      ${found && !passages.length && html`<${Empty}>No passage fits this question.<//>`}
      ${pipeline && place.value.query.document && html`<${Document} key=${place.value.query.document} pipeline=${pipeline} />`}
      ${pipeline && html`<${Evaluations} key=${`evaluations of ${pipeline}`} pipeline=${pipeline} />`}
      ${pipeline && html`<${Documents} key=${pipeline} pipeline=${pipeline} />`}
    </div>`;
}

/** The text of a document, with the passage that a citation names. @param {{pipeline: string}} props */
function Document({ pipeline }) {
  const { document = "", start, end } = place.value.query;
  const path = `/v1/rag/${encodeURIComponent(pipeline)}/documents/${document.split("/").map(encodeURIComponent).join("/")}`;
  const found = useResource(path, { live: false });
  const marked = useRef(/** @type {HTMLElement | null} */ (null));
  // offsets count code points
  const text = useMemo(() => [...String(found.value?.text ?? "")], [found.value]);
  useEffect(() => marked.current?.scrollIntoView({ block: "center" }), [found.value]);
  const first = Math.max(0, text.findIndex((character) => character.trim())); // behind what no passage holds
  const part = (/** @type {number} */ from, /** @type {number} */ to) => plain(text.slice(from, to).join(""));
  return html`
    <${Card} title=${plain(found.value?.title || document)} more=${html`<span class="muted mono">${plain(document)}</span>`}>
      <${Refusal} problem=${found.problem} />
      ${found.value && html`<p class="pad passage">${end ? html`${part(first, +start)}<mark ref=${marked}>${part(+start, +end)}</mark>${part(+end, text.length)}` : part(first, text.length)}</p>`}
    <//>`;
}

/** A measure, from 0 to 1. @param {number | undefined} value */
const share = (value) => (value === undefined ? html`<span class="muted">–</span>` : value.toFixed(3));

/** The reports of `astromesh rag eval`, and the questions of the chosen one. @param {{pipeline: string}} props */
function Evaluations({ pipeline }) {
  const chosen = place.value.query.evaluation || "";
  const base = `/v1/rag/${encodeURIComponent(pipeline)}/evaluations`;
  const found = useResource(`${base}?limit=50`, { live: false });
  const reports = found.value?.evaluations || [];
  return html`
    <${Card} title="Evaluations" more=${found.value?.next && html`<span class="muted">the newest 50</span>`}>
      <${Refusal} problem=${found.problem} />
      ${found.value && (reports.length
        ? html`<${Table} label="Evaluations of the pipeline" head=${["Started", "Questions", "hit@1", "hit@5", "MRR", "nDCG@10", "Refused", "p50", "p95"]} rows=${reports.map((/** @type {any} */ { evaluation_id: id, started_at, questions, measures: m }) => html`
            <tr key=${id} aria-current=${id === chosen ? "true" : undefined}>
              <td><a class="link" href=${link(["knowledge"], { pipeline, evaluation: id })}><${Ago} at=${started_at} /></a></td><td class="mono">${plain(questions)} · ${count(m.questions)}</td>
              ${["hit@1", "hit@5", "mrr", "ndcg@10", "refused"].map((name) => html`<td class="num">${share(m[name])}</td>`)}
              <td class="num">${duration(m.p50_ms)}</td><td class="num">${duration(m.p95_ms)}</td></tr>`)} />`
        : html`<${Empty} command=${`astromesh rag eval ${pipeline} --questions FILE`}>The pipeline was not measured yet. This command does it, and stores the report here.<//>`)}
    <//>
    ${chosen && html`<${Asked} key=${chosen} path=${`${base}/${encodeURIComponent(chosen)}`} />`}`;
}

/** Each question of a report with what came first, the wrong ones before the others. @param {{path: string}} props */
function Asked({ path }) {
  const found = useResource(path, { live: false });
  const asked = [...(found.value?.asked || [])].sort((a, b) => Number(a.is_right) - Number(b.is_right));
  const wrong = asked.filter((one) => !one.is_right).length;
  return html`
    <${Card} title="Questions of the evaluation" more=${found.value && html`<span class="muted">${count(wrong)} of ${count(asked.length)} wrong</span>`}>
      <${Refusal} problem=${found.problem} />
      ${found.value && html`<${Table} label="Questions of the evaluation" head=${["Result", "Question", "Right passage", "Its place", "Came first", "Score", "Time"]} rows=${asked.map((one, at) => html`
        <tr key=${at}><td><${Pill} state=${one.is_right ? "ok" : "failed"} text=${one.is_right ? "right" : "wrong"} /></td><td class="wrap">${plain(one.question)}</td>
          <td class="wrap">${plain(one.expected || "none answers")}</td><td class="num">${one.expected ? one.rank || "not in 10" : ""}</td>
          <td class="wrap">${one.is_right && one.expected ? "" : plain(one.first || "nothing")}</td><td class="num">${one.score.toFixed(3)}</td><td class="num">${duration(one.ms)}</td></tr>`)} />`}
    <//>`;
}

/** @param {{pipeline: string}} props */
function Documents({ pipeline }) {
  const of = place.value.query.of in OWNERS ? place.value.query.of : "tenant";
  const after = place.value.query.after || "";
  const path = `/v1/rag/${encodeURIComponent(pipeline)}/documents?of=${of}&limit=200${after ? `&after=${encodeURIComponent(after)}` : ""}`;
  const listed = useResource(path, { live: false });
  const documents = listed.value?.documents || [];
  return html`
    <${Card} title="Documents" more=${html`<${Select} label="Documents of" value=${of} options=${CHOICES} onChange=${(/** @type {string} */ value) => refine({ of: value, after: "" })} />`}>
      <${Refusal} problem=${listed.problem} />
      ${listed.value && (documents.length
        ? html`<${Table} label="Documents" head=${["Id", "Title"]} rows=${documents.map((/** @type {any} */ one) => html`
            <tr key=${one.id}><td><a class="link mono" href=${link(["knowledge"], { pipeline, of, document: one.id })}>${plain(one.id)}</a></td><td>${plain(one.title)}</td></tr>`)} />
            ${listed.value.next && html`<p class="pad"><a class="button" href=${link(["knowledge"], { pipeline, of, after: listed.value.next })}>More</a></p>`}`
        : html`<${Empty}>${OWNERS[of][1]}<//>`)}
    <//>`;
}
