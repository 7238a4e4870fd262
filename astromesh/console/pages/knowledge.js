// @ts-check
// Knowledge: the documents of a pipeline, and which passages a question finds, with their scores.
import { post } from "../api.js";
import { html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { useResource } from "../poll.js";
import { link, place, refine } from "../router.js";
import { Card, CopyRequest, Empty, Head, Json, plain, Refusal, Select, Table, useAction } from "../ui.js";

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
  const names = Object.keys(ready.value?.checks || {}).filter((name) => name.startsWith("store:rag:")).map((name) => name.slice(10));
  const pipeline = place.value.query.pipeline || names[0] || "";
  const [query, setQuery] = useState(place.value.query.query || "");
  const [found, setFound] = useState(/** @type {any} */ (null));
  const action = useAction();
  const path = `/v1/rag/${encodeURIComponent(pipeline)}/query`;
  const ask = (/** @type {Event} */ event) => {
    event.preventDefault();
    refine({ query, pipeline });
    action.run(async () => setFound(await post(path, { query, top_k: 10 })));
  };
  useEffect(() => setFound(null), [pipeline]);
  const passages = found?.passages || found?.results || found?.chunks || [];
  return html`
    <${Head} title="Knowledge"><span class="grow"></span>${pipeline && html`<${CopyRequest} method="POST" path=${path} body=${{ query: query || "reset password", top_k: 10 }} />`}<//>
    ${ready.value && !names.length
      ? html`<${Empty} command="astromesh rag ingest PIPELINE">No pipeline is configured. A file <code>rag/NAME.rag.yaml</code> makes one.<//>`
      : html`<form class="filters" onSubmit=${ask}>
          <${Select} label="Pipeline" value=${pipeline} options=${names} onChange=${(/** @type {string} */ value) => refine({ pipeline: value, after: "" })} />
          <label class="field wide-field"><span>Question</span><input required value=${query} onInput=${(/** @type {any} */ event) => setQuery(event.target.value)} /></label>
          <button class="primary" disabled=${action.busy || !query.trim()}>Search</button>
        </form>`}
    <${Refusal} problem=${action.problem} />
    <div class="pane narrow">
      ${passages.map((/** @type {any} */ one, /** @type {number} */ at) => html`
        <${Card} key=${at} title=${`${at + 1}. ${plain(one.source || one.document || one.metadata?.source || "passage")}`} more=${html`<span class="muted num">score ${Number(one.score ?? 0).toFixed(3)}</span>`}>
          <div class="pad"><p class="passage">${plain(one.text ?? one.content ?? "")}</p><details><summary class="muted">All that is known of it</summary><${Json} value=${one} /></details></div><//>`)}
      ${found && !passages.length && html`<${Empty}>No passage fits this question.<//>`}
      ${pipeline && place.value.query.document && html`<${Document} key=${place.value.query.document} pipeline=${pipeline} />`}
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
  const part = (/** @type {number} */ from, /** @type {number} */ to) => plain(text.slice(from, to).join(""));
  return html`
    <${Card} title=${plain(found.value?.title || document)} more=${html`<span class="muted mono">${plain(document)}</span>`}>
      <${Refusal} problem=${found.problem} />
      ${found.value && html`<p class="pad passage">${end ? html`${part(0, +start)}<mark ref=${marked}>${part(+start, +end)}</mark>${part(+end, text.length)}` : part(0, text.length)}</p>`}
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
