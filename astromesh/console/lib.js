// @ts-check
// The libraries in vendor/, each with the types that the console relies on. Other modules import them from here.
import * as hooks from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import * as preact from "./vendor/preact.js";
import * as signals from "./vendor/signals.js";

/** @typedef {(strings: TemplateStringsArray, ...values: any[]) => any} Template */
/** @typedef {() => void | (() => void)} Act */

/** A tree of elements, written as HTML. */
export const html = /** @type {Template} */ (htm.bind(/** @type {any} */ (preact.h)));
export const render = /** @type {(tree: any, parent: Element) => void} */ (/** @type {any} */ (preact.render));

export const useEffect = /** @type {(act: Act, depends?: any[]) => void} */ (/** @type {any} */ (hooks.useEffect));
export const useLayoutEffect = /** @type {typeof useEffect} */ (/** @type {any} */ (hooks.useLayoutEffect));
export const useMemo = /** @type {<T>(make: () => T, depends: any[]) => T} */ (/** @type {any} */ (hooks.useMemo));
export const useRef = /** @type {<T>(first: T) => {current: T}} */ (/** @type {any} */ (hooks.useRef));
export const useState = /** @type {<T>(first: T | (() => T)) => [T, (next: T | ((old: T) => T)) => void]} */ (
  /** @type {any} */ (hooks.useState)
);

export const signal = /** @type {<T>(value: T) => {value: T}} */ (/** @type {any} */ (signals.signal));
