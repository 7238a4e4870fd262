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

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const target = /** @type {HTMLElement} */ (event.target);
  const writing = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
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
