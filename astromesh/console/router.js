// @ts-check
// Addresses of views. A view is `#/runs/ID?tab=raw`: the part behind `#` is a path and a query, so every view can be
// shared as a link, and the server needs one page only.
import { signal } from "./lib.js";

/** @typedef {{path: string[], query: Record<string, string>}} Place */

/** @returns {Place} */
function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The place that the window shows. */
export const place = signal(read());
addEventListener("hashchange", () => (place.value = read()));

/**
 * The address of a place.
 * @param {string[]} path
 * @param {Record<string, string | number | undefined>} [query] empty values are left out
 */
export function link(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${search ? `?${search}` : ""}`;
}

/** @param {string} address */
export function go(address) {
  location.hash = address;
}

/**
 * Changes the query of the place that is shown, without a step in the history.
 * @param {Record<string, string | number | undefined>} changes
 */
export function refine(changes) {
  const now = place.value;
  history.replaceState(null, "", link(now.path, { ...now.query, ...changes }));
  place.value = read();
}

/**
 * The tab that the address names, else the first: an address may be of another version.
 * @param {string[]} tabs
 */
export function chosenTab(tabs) {
  const named = place.value.query.tab;
  return tabs.includes(named) ? named : tabs[0];
}
