// @ts-check
// Graphs of agents and workflows: laid out by dagre, drawn as SVG. Nodes can be lit while they run.
import { html, useEffect, useState } from "./lib.js";
import { plain } from "./ui.js";

/** @typedef {{id: string, label: string, kind?: string, state?: string, href?: string}} Node */
/** @typedef {{from: string, to: string, label?: string, dashed?: boolean}} Edge */

const CHARACTER = 6.6;

/** Reads the part of Mermaid's flowchart syntax that the server writes. @param {string} text @returns {{nodes: Node[], edges: Edge[]}} */
export function fromMermaid(text) {
  /** @type {Map<string, Node>} */
  const nodes = new Map();
  /** @type {Edge[]} */
  const edges = [];
  const shape = /^([\w]+)\s*(?:\(\[|\[\[|\[\(|\(\(|\{\{|\[\/|\[|\(|\{|>)\s*"?(.*?)"?\s*(?:\]\)|\]\]|\)\]|\)\)|\}\}|\/\]|\]|\)|\})(?::::\w+)?$/;
  const arrow = /^(\w+)\s*(-->|-\.->|==>|---)\s*(?:\|"?(.*?)"?\|)?\s*(\w+)$/;
  for (const raw of text.split("\n")) {
    const line = raw.trim();
    const edge = arrow.exec(line);
    const node = edge ? null : shape.exec(line);
    if (edge) edges.push({ from: edge[1], to: edge[4], label: unescaped(edge[3] || ""), dashed: edge[2] === "-.->" });
    else if (node) nodes.set(node[1], { id: node[1], label: unescaped(node[2]), kind: kindOf(line.slice(node[1].length)) });
  }
  for (const { from, to } of edges) {
    for (const id of [from, to]) if (!nodes.has(id)) nodes.set(id, { id, label: id });
  }
  return { nodes: [...nodes.values()], edges };
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
 * @param {{nodes: Node[], edges: Edge[], label: string, across?: boolean}} props
 *     across: from left to right; a node's `state` is one of `lit`, `done`, `bad`, `wait`
 */
export function Diagram({ nodes, edges, label, across = false }) {
  const [drawn, setDrawn] = useState(/** @type {any} */ (null));
  const shape = JSON.stringify([nodes.map((n) => [n.id, n.label]), edges, across]);
  useEffect(() => {
    let gone = false;
    import("./vendor/dagre.js").then((dagre) => gone || setDrawn(layOut(dagre, nodes, edges, across)));
    return () => {
      gone = true;
    };
  }, [shape]);
  if (!drawn) return html`<p class="muted pad">Laying out ${nodes.length} nodes.</p>`;
  const states = new Map(nodes.map((node) => [node.id, node]));
  return html`<div class="diagram" tabindex="0" role="region" aria-label=${label}>
    <svg viewBox=${`0 0 ${drawn.width} ${drawn.height}`} width=${drawn.width} height=${drawn.height} role="img" aria-label=${label}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0 0 8 4 0 8z" /></marker></defs>
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

/** @param {any} dagre @param {Node[]} nodes @param {Edge[]} edges @param {boolean} across */
function layOut(dagre, nodes, edges, across) {
  const library = dagre.default || dagre;
  const graph = new library.graphlib.Graph({ multigraph: true });
  graph.setGraph({ rankdir: across ? "LR" : "TB", nodesep: 18, ranksep: 34, marginx: 8, marginy: 8 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const node of nodes) {
    const text = node.label.length > 32 ? `${node.label.slice(0, 31)}…` : node.label;
    graph.setNode(node.id, { text, width: Math.max(48, text.length * CHARACTER + 20), height: 28 });
  }
  edges.forEach((edge, at) => {
    const label = edge.label ? { label: edge.label, width: edge.label.length * 5.6 + 8, height: 14, labelpos: "c" } : {};
    graph.setEdge(edge.from, edge.to, { ...label, dashed: edge.dashed }, String(at));
  });
  library.layout(graph);
  const size = graph.graph();
  return {
    width: Math.ceil(size.width), height: Math.ceil(size.height),
    nodes: graph.nodes().map((/** @type {string} */ id) => ({ id, ...graph.node(id) })),
    edges: graph.edges().map((/** @type {any} */ edge) => {
      const made = graph.edge(edge);
      const [first, ...rest] = made.points;
      return { ...made, path: `M${first.x} ${first.y}${rest.map((/** @type {any} */ p) => `L${p.x} ${p.y}`).join("")}` };
    }),
  };
}
