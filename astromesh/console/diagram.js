// @ts-check
// Graphs of agents and workflows: laid out by dagre, drawn as SVG. Nodes can be lit while they run.
import { html, useEffect, useState } from "./lib.js";
import { plain } from "./ui.js";

/** @typedef {{id: string, label: string, kind?: string, state?: string, href?: string, group?: string}} Node */
/** @typedef {{from: string, to: string, label?: string, dashed?: boolean, hidden?: boolean}} Edge */
/** @typedef {{nodes: Node[], edges: Edge[], groups: {id: string, label: string}[]}} Drawing */

const CHARACTER = 6.6;
/** A narrow window shrinks a drawing to so much of its size, and scrolls the rest: it stays legible. */
const LEAST = 0.7;
/** Height of a group's title, above its nodes. */
const TITLE = 12;

/** Reads the part of Mermaid's flowchart syntax that the server writes. @param {string} text @returns {Drawing} */
export function fromMermaid(text) {
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  /** @type {Edge[]} */
  const edges = [];
  /** @type {{id: string, label: string}[]} */
  const groups = [];
  let group = "";
  const shape = /^([\w]+)\s*(?:\(\[|\[\[|\[\(|\(\(|\{\{|\[\/|\[\\|\[|\(|\{|>)\s*"?(.*?)"?\s*(?:\]\)|\]\]|\)\]|\)\)|\}\}|\/\]|\\\]|\]|\)|\})(?::::\w+)?$/;
  const arrow = /^(\w+)\s*(-->|-\.->|==>|---)\s*(?:\|"?(.*?)"?\|)?\s*(\w+)$/;
  const begin = /^subgraph (\w+)\s*(?:\["?(.*?)"?\])?$/;
  for (const raw of text.split("\n")) {
    const line = raw.trim();
    const opened = begin.exec(line);
    const edge = opened ? null : arrow.exec(line);
    const node = opened || edge ? null : shape.exec(line);
    if (opened) groups.push({ id: (group = opened[1]), label: unescaped(opened[2] || opened[1]) });
    else if (line === "end") group = "";
    else if (edge) edges.push({ from: edge[1], to: edge[4], label: unescaped(edge[3] || ""), dashed: edge[2] === "-.->" });
    else if (node) nodes.set(node[1], { id: node[1], label: unescaped(node[2]), kind: kindOf(line.slice(node[1].length)), group });
  }
  return resolved(nodes, edges, groups);
}

/** Arrows at a group lead to its first node and from its last one; nodes of a group without arrows stand in a column.
 * @param {Map<string, Node>} nodes @param {Edge[]} edges @param {Drawing["groups"]} groups @returns {Drawing} */
function resolved(nodes, edges, groups) {
  /** @type {Map<string, {first: string, last: string}>} */
  const ends = new Map();
  /** @type {Edge[]} */
  const columns = [];
  for (const { id } of groups) {
    const own = [...nodes.values()].filter((node) => node.group === id).map((node) => node.id);
    if (!own.length) continue;
    const inner = edges.filter((edge) => own.includes(edge.from) && own.includes(edge.to));
    if (!inner.length) own.slice(1).forEach((to, n) => columns.push({ from: own[n], to, hidden: true }));
    const first = own.find((one) => inner.length && !inner.some((edge) => edge.to === one)) || own[0];
    const last = [...own].reverse().find((one) => inner.length && !inner.some((edge) => edge.from === one)) || own[own.length - 1];
    ends.set(id, { first, last });
  }
  const all = edges.map((edge) => ({ ...edge, from: ends.get(edge.from)?.last || edge.from, to: ends.get(edge.to)?.first || edge.to }));
  for (const { from, to } of all) {
    for (const id of [from, to]) if (!nodes.has(id)) nodes.set(id, { id, label: id });
  }
  return { nodes: [...nodes.values()], edges: [...all, ...columns], groups: groups.filter((one) => ends.has(one.id)) };
}

/** The way of a message through an agent: without the groups that only dashed arrows lead to. @param {Drawing} drawing @returns {Drawing} */
export function wayOf({ nodes, edges, groups }) {
  const aside = new Set(edges.filter((edge) => edge.dashed).map((edge) => nodes.find((node) => node.id === edge.to)?.group || ""));
  aside.delete("");
  const kept = nodes.filter((node) => !aside.has(node.group || ""));
  const ids = new Set(kept.map((node) => node.id));
  return { nodes: kept, edges: edges.filter((edge) => ids.has(edge.from) && ids.has(edge.to)), groups: groups.filter((one) => !aside.has(one.id)) };
}

/** @param {string} shape */
function kindOf(shape) {
  return /^\s*(\{\{|\{)/.test(shape) ? "decision" : /^\s*\(\(/.test(shape) ? "end" : "node";
}

/** @type {Record<string, string>} */
const ENTITIES = { quot: '"', amp: "&", lt: "<", gt: ">", 35: "#" };

/** @param {string} text */
function unescaped(text) {
  return text.replace(/#(\w+);/g, (whole, name) => ENTITIES[name] ?? whole).replace(/<br\s*\/?>/g, " · ");
}

/**
 * @param {{nodes: Node[], edges: Edge[], groups?: Drawing["groups"], label: string, across?: boolean}} props
 *     across: from left to right; a node's `state` is one of `lit`, `done`, `bad`, `wait`
 */
export function Diagram({ nodes, edges, groups = [], label, across = false }) {
  const [drawn, setDrawn] = useState(/** @type {any} */ (null));
  const shape = JSON.stringify([nodes.map((n) => [n.id, n.label]), edges, across]);
  useEffect(() => {
    let gone = false;
    import("./vendor/dagre.js").then((dagre) => gone || setDrawn(layOut(dagre, nodes, edges, groups, across)));
    return () => {
      gone = true;
    };
  }, [shape]);
  if (!nodes.length) return html`<p class="muted pad">There is no graph.</p>`;
  if (!drawn) return html`<p class="muted pad">Laying out ${nodes.length} nodes.</p>`;
  const states = new Map(nodes.map((node) => [node.id, node]));
  return html`<div class="diagram" tabindex="0" role="region" aria-label=${label}>
    <svg viewBox=${`0 0 ${drawn.width} ${drawn.height}`} width=${drawn.width} height=${drawn.height} style=${{ minWidth: `${Math.round(drawn.width * LEAST)}px` }} role="img" aria-label=${label}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0 0 8 4 0 8z" /></marker></defs>
      ${drawn.groups.map((/** @type {any} */ box) => html`<g class="cluster" key=${box.id}>
        <rect x=${box.x - box.width / 2} y=${box.y - box.height / 2 - TITLE} width=${box.width} height=${box.height + TITLE} rx="8" />
        <text x=${box.x - box.width / 2 + 8} y=${box.y - box.height / 2 + 3} class="small">${plain(box.label)}</text></g>`)}
      ${drawn.edges.map((/** @type {any} */ edge) => html`
        <path class=${`edge ${edge.dashed ? "dashed" : ""}`} d=${edge.path} marker-end="url(#arrow)" />
        ${edge.label && html`<text x=${edge.x} y=${edge.y} text-anchor="middle" class="small">${plain(edge.label)}</text>`}`)}
      ${drawn.nodes.map((/** @type {any} */ box) => {
        const node = states.get(box.id);
        const figure = html`<g class=${`node ${node?.state || ""} ${node?.kind || ""}`}>
          <title>${plain(node?.label ?? box.id)}${node?.state ? ` (${node.state})` : ""}</title>
          <rect x=${box.x - box.width / 2} y=${box.y - box.height / 2} width=${box.width} height=${box.height} rx=${node?.kind === "end" ? 14 : 6} />
          <text x=${box.x} y=${box.y + 4} text-anchor="middle">${plain(box.text)}</text>
        </g>`;
        return node?.href ? html`<a href=${node.href}>${figure}</a>` : figure;
      })}
    </svg>
  </div>`;
}

/** @param {any} dagre @param {Node[]} nodes @param {Edge[]} edges @param {Drawing["groups"]} groups @param {boolean} across */
function layOut(dagre, nodes, edges, groups, across) {
  const library = dagre.default || dagre;
  const graph = new library.graphlib.Graph({ multigraph: true, compound: true });
  graph.setGraph({ rankdir: across ? "LR" : "TB", nodesep: 18, ranksep: 26, marginx: 8, marginy: groups.length ? 8 + TITLE : 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id, label } of groups) graph.setNode(`group ${id}`, { label, width: label.length * 5.6 + 16 });
  for (const node of nodes) {
    const text = node.label.length > 32 ? `${node.label.slice(0, 31)}…` : node.label;
    graph.setNode(node.id, { text, width: Math.max(48, text.length * CHARACTER + 20), height: 26 });
    if (groups.some((one) => one.id === node.group)) graph.setParent(node.id, `group ${node.group}`);
  }
  edges.forEach((edge, at) => {
    const label = edge.label ? { label: edge.label, width: edge.label.length * 5.6 + 8, height: 14, labelpos: "c" } : {};
    graph.setEdge(edge.from, edge.to, { ...label, dashed: edge.dashed, hidden: edge.hidden }, String(at));
  });
  library.layout(graph);
  const size = graph.graph();
  const placed = graph.nodes().map((/** @type {string} */ id) => ({ id, ...graph.node(id) }));
  return {
    width: Math.ceil(size.width), height: Math.ceil(size.height),
    nodes: placed.filter((/** @type {any} */ one) => one.text !== undefined),
    groups: placed.filter((/** @type {any} */ one) => one.text === undefined),
    edges: graph.edges().map((/** @type {any} */ edge) => {
      const made = graph.edge(edge);
      const [first, ...rest] = made.points;
      return { ...made, path: `M${first.x} ${first.y}${rest.map((/** @type {any} */ p) => `L${p.x} ${p.y}`).join("")}` };
    }).filter((/** @type {any} */ edge) => !edge.hidden),
  };
}
