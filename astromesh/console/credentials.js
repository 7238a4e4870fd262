// @ts-check
// The API keys of a tenant: list, create, revoke. A new key is shown once and kept nowhere.
import { post, remove } from "./api.js";
import { html, useState } from "./lib.js";
import { refresh, useResource } from "./poll.js";
import { Ago, brief, Card, Confirm, Copy, Empty, Pill, plain, Refusal, Table, useAction } from "./ui.js";

const PATH = "/v1/keys";
const NOTHING = { name: "", scopes: "", agents: "", user: "", expires_days: "" };
/** @type {[keyof typeof NOTHING, string, string][]} field, label, placeholder */
const FIELDS = [
  ["name", "Name, for people", "website"],
  ["scopes", "Scopes; empty: those of an application", "agents:run runs:read"],
  ["agents", "Only these agents", "support-agent"],
  ["user", "Principal; empty: that of keys of this name", ""],
  ["expires_days", "Days; empty: it does not expire", "90"],
];

export function ApiKeys() {
  const found = useResource(PATH, { live: false });
  const [made, setMade] = useState(/** @type {any} */ (null));
  const action = useAction();
  const keys = [...(found.value?.keys || [])].sort((a, b) => (a.created_at < b.created_at ? 1 : -1));
  const revoke = (/** @type {string} */ id) => action.run(async () => (await remove(`${PATH}/${encodeURIComponent(id)}`), refresh(PATH)));
  return html`<div class="pane">
    <${Refusal} problem=${found.problem || action.problem} />
    ${made && html`<section class="ask" aria-label="The new key" role="status">
      <div class="title-row"><b>${plain(made.name)}</b><span>Copy the key now. The server does not store it and cannot show it again.</span><span class="grow"></span>
        <button type="button" class="quiet" onClick=${() => setMade(null)}>Done</button></div>
      <pre tabindex="0">${made.token}</pre><div><${Copy} text=${made.token} label="Copy the key" /></div>
    </section>`}
    ${found.value && html`<${Create} onMade=${setMade} />
      ${keys.length ? html`<${Table} label="API keys" head=${["Name", "State", "Principal", "Scopes", ["Created", "r"], ["Expires", "r"], ["Last used", "r"], ["Action", "r"]]} rows=${keys.map((one) => html`
        <tr key=${one.id}><td>${plain(one.name)} <span class="muted mono">${plain(one.id)}</span></td><td><${Pill} state=${one.state} /></td><td>${plain(one.user)}</td>
          <td class="text" title=${plain(one.scopes.join(" "))}>${brief(one.scopes.join(" "), 120)}</td>
          <td class="r"><${Ago} at=${one.created_at} /></td><td class="r"><${Ago} at=${one.expires_at} /></td><td class="r"><${Ago} at=${one.last_used_at} /></td>
          <td class="r">${one.state === "active" && html`<${Confirm} label="Revoke" question="Refuse it from now on?" disabled=${action.busy} onYes=${() => revoke(one.id)} />`}</td></tr>`)} />` : html`<${Empty}>Your tenant has no key.<//>`}`}
  </div>`;
}

/** @param {{onMade: (key: any) => void}} props */
function Create({ onMade }) {
  const [fields, setFields] = useState(NOTHING);
  const action = useAction();
  const words = (/** @type {string} */ text) => text.split(/[\s,]+/).filter(Boolean);
  const create = (/** @type {Event} */ event) => {
    event.preventDefault();
    const { name, scopes, agents, user, expires_days } = fields;
    action.run(async () => {
      onMade(await post(PATH, { name, scopes: words(scopes), agents: words(agents), user, expires_days: Number(expires_days) || 0 }));
      setFields(NOTHING);
      refresh(PATH, "/v1/audit");
    });
  };
  return html`<${Card} title="New key"><form class="filters" onSubmit=${create}>
      ${FIELDS.map(([field, label, placeholder]) => html`<label class="field wide-field"><span>${label}</span>
        <input required=${field === "name"} inputmode=${field === "expires_days" ? "numeric" : undefined} placeholder=${placeholder} value=${fields[field]}
          onInput=${(/** @type {any} */ event) => setFields({ ...fields, [field]: event.target.value })} /></label>`)}
      <button class="primary" disabled=${action.busy || !fields.name.trim()}>Create the key</button>
    </form><${Refusal} problem=${action.problem} /><//>`;
}
