// @ts-check
// Reports of evaluations as columns: how often each case has passed in each, and what changed. Pure functions.

/**
 * @typedef {{passed: number, runs: number}} Cell
 * @typedef {{id: string, at: number, model: string, cells: Map<string, Cell>}} Column
 * @typedef {{key: string, cells: (Cell | undefined)[], marks: ("worse" | "better" | "")[]}} Row
 */

/** A column for each report, or for each model of one that has several. @param {any[]} reports newest first @returns {Column[]} */
export function columnsOf(reports) {
  return reports.flatMap((report) => {
    /** @type {Map<string, Column>} */
    const byModel = new Map();
    for (const one of report.cases) {
      const column = byModel.get(one.model) || { id: report.evaluation_id, at: report.started_at, model: one.model, cells: new Map() };
      byModel.set(one.model, column);
      const key = keyOf(one);
      const cell = column.cells.get(key) || { passed: 0, runs: 0 };
      column.cells.set(key, { passed: cell.passed + Number(one.passed), runs: cell.runs + 1 });
    }
    return [...byModel.values()];
  });
}

/** @param {any} one */
export const keyOf = (one) => `${one.suite}/${one.case}`;

/** The look of a cell. @param {Cell} cell */
export const mark = (cell) => (cell.passed === cell.runs ? "ok" : cell.passed ? "warning" : "failed");

/** A row for each case of any column. A cell is compared with the next older column of the same model. @param {Column[]} columns @returns {Row[]} */
export function rowsOfCases(columns) {
  const keys = [...new Set(columns.flatMap((column) => [...column.cells.keys()]))];
  const rows = keys.map((key) => ({
    key,
    cells: columns.map((column) => column.cells.get(key)),
    marks: columns.map((column, n) => {
      const older = columns.slice(n + 1).find((one) => one.id !== column.id && one.model === column.model && one.cells.has(key));
      return changed(older?.cells.get(key), column.cells.get(key));
    }),
  }));
  return rows.sort((a, b) => Number(b.marks[0] === "worse") - Number(a.marks[0] === "worse"));
}

/** @param {Cell | undefined} before @param {Cell | undefined} after @returns {"worse" | "better" | ""} */
function changed(before, after) {
  if (!before || !after) return "";
  const difference = after.passed / after.runs - before.passed / before.runs;
  return difference < 0 ? "worse" : difference > 0 ? "better" : "";
}
