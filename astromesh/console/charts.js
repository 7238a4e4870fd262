// @ts-check
// Lines over time, drawn by uPlot, in the colours of the page.
import { html, useEffect, useRef } from "./lib.js";

/** @typedef {{label: string, colour: string, values: (number | null)[]}} Line */

const minute = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** @type {(plot: unknown, at: number | null) => string} */
const time = (_, at) => (at === null ? "–" : exact.format(at * 1000));
/** Labels of the axis, of which two are `step` seconds apart. @type {(plot: unknown, at: number[], axis: number, space: number, step: number) => string[]} */
const times = (_plot, at, _axis, _space, step) => at.map((one) => (step < 86_400 ? minute : day).format(one * 1000));

/**
 * @param {{at: number[], lines: Line[], label: string, height?: number}} props
 *     at: seconds since the epoch, rising; each line has one value for each of them; colours are tokens of style.css
 */
export function Chart({ at, lines, label, height = 150 }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const data = [at, ...lines.map((line) => line.values)];
  const newest = useRef(data);
  newest.current = data;
  useEffect(() => {
    let gone = false;
    const box = /** @type {HTMLElement} */ (element.current);
    const draw = async () => {
      const UPlot = /** @type {any} */ ((await import("./vendor/uplot.js")).default);
      if (gone) return;
      plot.current?.destroy();
      const axis = { stroke: colour("ink-3"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
      plot.current = new UPlot(
        {
          width: box.clientWidth, height,
          cursor: { y: false }, legend: { live: true },
          axes: [{ ...axis, values: times }, { ...axis, size: 44 }],
          scales: { y: { range: (/** @type {any} */ _, /** @type {number} */ low, /** @type {number} */ high) => [0, Math.max(high || 0, 1)] } },
          series: [{ value: time }, ...lines.map((line) => ({
            label: line.label, stroke: colour(line.colour), width: 1.5, points: { show: false },
          }))],
        },
        newest.current, box,
      );
    };
    draw();
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }));
    observer.observe(box);
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", draw);
    return () => {
      gone = true;
      theme.removeEventListener("change", draw);
      observer.disconnect();
      plot.current?.destroy();
    };
  }, [lines.map((line) => line.label).join()]);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<div class="chart" ref=${element} role="img" aria-label=${label}></div>`;
}
