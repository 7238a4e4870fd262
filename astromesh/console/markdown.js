// @ts-check
// Markdown of models: parsed by marked, made harmless by DOMPurify.
import { html, useMemo } from "./lib.js";
import { plain } from "./ui.js";
import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/dompurify.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li", "ol", "p",
    "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "title", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|#)/i,
};

/** Elements without attributes, which models write in Markdown. Any other HTML is shown as the text that it is. */
const SIMPLE = /^<\/?(?:b|br|code|del|em|i|strong)\s*\/?>$/i;
/** @type {Record<string, string>} */
const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

marked.use({
  renderer: {
    html: (/** @type {{text: string}} */ { text }) => (SIMPLE.test(text.trim()) ? text : text.replace(/[&<>"]/g, (one) => ENTITIES[one])),
  },
});

const { sanitize } = /** @type {any} */ (DOMPurify);
DOMPurify.addHook("afterSanitizeAttributes", (/** @type {Element} */ node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("rel", "noreferrer noopener nofollow");
  node.setAttribute("target", "_blank");
});

/** @param {{text: string}} props */
export function Markdown({ text }) {
  const made = useMemo(() => sanitize(/** @type {string} */ (marked.parse(plain(text), { async: false, breaks: true })), ALLOWED), [text]);
  return html`<div class="markdown" dangerouslySetInnerHTML=${{ __html: made }}></div>`;
}
