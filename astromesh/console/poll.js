// @ts-check
// What a page shows and the server changes. While nothing happens, the whole console sends one request in five seconds:
// each tick asks again for what has been waiting longest.
import { get, Problem } from "./api.js";
import { useEffect, useState } from "./lib.js";

const TICK = 5_000;

/** @typedef {{path: string, listeners: Set<() => void>, value: any, problem: Problem | null, at: number, busy: boolean, live: boolean}} Resource */

/** @type {Map<string, Resource>} */
const resources = new Map();

/** @param {string} path */
function resourceOf(path) {
  let found = resources.get(path);
  if (!found) {
    found = { path, listeners: new Set(), value: undefined, problem: null, at: 0, busy: false, live: false };
    resources.set(path, found);
  }
  return found;
}

/** @param {Resource} resource */
async function load(resource) {
  if (resource.busy) return;
  resource.busy = true;
  try {
    resource.value = await get(resource.path);
    resource.problem = null;
  } catch (error) {
    resource.problem = error instanceof Problem ? error : new Problem(0, { detail: String(error) });
  }
  resource.busy = false;
  resource.at = Date.now();
  for (const listener of [...resource.listeners]) listener();
}

function tick() {
  if (document.hidden) return;
  const watched = [...resources.values()].filter((one) => one.listeners.size && one.live);
  const oldest = watched.sort((a, b) => a.at - b.at)[0];
  if (oldest) load(oldest);
}

setInterval(tick, TICK);
document.addEventListener("visibilitychange", tick);

/**
 * The newest value of a GET route, shared by all who ask for the same path.
 * @param {string} path empty: nothing is asked
 * @param {{live?: boolean}} [options] live: asked again while the page is open
 * @returns {{value: any, problem: Problem | null, loading: boolean, reload: () => void}}
 */
export function useResource(path, { live = true } = {}) {
  const [, redraw] = useState(0);
  useEffect(() => {
    if (!path) return undefined;
    const resource = resourceOf(path);
    const listener = () => redraw((n) => n + 1);
    resource.listeners.add(listener);
    resource.live ||= live;
    if (resource.value === undefined || Date.now() - resource.at > TICK / 2) load(resource);
    return () => {
      resource.listeners.delete(listener);
      if (!resource.listeners.size) resources.delete(path);
    };
  }, [path]);
  const found = path ? resources.get(path) : undefined;
  return {
    value: found?.value,
    problem: found?.problem || null,
    loading: !!path && found?.value === undefined && !found?.problem,
    reload: () => path && load(resourceOf(path)),
  };
}

/** Asks again, at once, for everything shown whose path begins so: what an action has just changed. @param {string[]} prefixes */
export function refresh(...prefixes) {
  for (const resource of resources.values()) {
    if (resource.listeners.size && prefixes.some((prefix) => resource.path.startsWith(prefix))) load(resource);
  }
}
