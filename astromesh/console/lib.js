// The libraries in vendor/, with the types of their packages. Every other module imports them from here.
import * as preact from "./vendor/preact.js";
import * as hooks from "./vendor/hooks.js";
import * as signals from "./vendor/signals.js";
import htm from "./vendor/htm.js";

export const { h, render, createRef, Fragment } = preact;
export const { useEffect, useLayoutEffect, useMemo, useRef, useState } = hooks;
export const { signal, computed, effect, batch, useSignal } = signals;
export const html = htm.bind(h);
