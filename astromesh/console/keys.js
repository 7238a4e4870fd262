// @ts-check
// The keyboard: every key of a view is registered here while the view is shown, and `?` lists them.
import { signal, useLayoutEffect, useRef } from "./lib.js";

/** @typedef {{keys: string, does: string, act: (event: KeyboardEvent) => void}} Shortcut */

/** Shortcuts of what is shown now, the innermost last. */
export const shortcuts = signal(/** @type {Shortcut[]} */ ([]));
export const helpOpen = signal(false);
/** Keys typed so far of a shortcut of two, as `g r`. */
let typed = "";
let forget = 0;

/**
 * Registers shortcuts while a component is shown. `keys` are `j`, `Escape`, or two in a row: `g r`. The list keeps its keys; a
 * key acts as the component was last drawn.
 * @param {[string, string, (event: KeyboardEvent) => void][]} list
 */
export function useKeys(list) {
  const newest = useRef(list);
  newest.current = list;
  useLayoutEffect(() => {
    const mine = list.map(([keys, does], n) => ({ keys, does, act: (/** @type {KeyboardEvent} */ event) => newest.current[n][2](event) }));
    shortcuts.value = [...shortcuts.value, ...mine];
    return () => {
      shortcuts.value = shortcuts.value.filter((one) => !mine.includes(one));
    };
  }, []);
}

/** What a list consists of, and what is chosen in its rows. */
const ROWS = "main :is(tbody tr, .ask, .sess)";
/** Moves the focus to the next or the previous row of the page. @param {number} by */
export function walk(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => doorOf(row));
  const at = rows.findIndex((row) => row.contains(document.activeElement));
  doorOf(rows[Math.max(0, Math.min(at + by, rows.length - 1))])?.focus();
}

/** The first of a row that can have the focus. @param {Element | undefined} row @returns {HTMLElement | null | undefined} */
const doorOf = (row) => (row instanceof HTMLAnchorElement ? row : row?.querySelector("a, button, input"));

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = /** @type {HTMLElement} */ (event.target);
  const writing = target.isContentEditable || target.matches?.("input:not([type=checkbox]), textarea, select");
  if (writing && event.key !== "Escape") return;
  if (document.querySelector("dialog[open]")) return;
  clearTimeout(forget);
  const pressed = typed ? `${typed} ${event.key}` : event.key;
  typed = "";
  const found = [...shortcuts.value].reverse().find((one) => one.keys === pressed);
  if (found) {
    event.preventDefault();
    found.act(event);
  } else if (shortcuts.value.some((one) => one.keys.startsWith(`${pressed} `))) {
    typed = pressed;
    forget = window.setTimeout(() => (typed = ""), 1500);
  }
});
