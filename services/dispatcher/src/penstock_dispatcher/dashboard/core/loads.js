/** What vertices and whole jobs do, from what their subtasks report. Null where nobody reports it. */

/** Operators at which rows leave a job. What publishes them later takes batches of bytes. */
const WRITES = new Set(["write", "encode"]);

/**
 * @typedef {object} VertexLoad
 * @property {string} id
 * @property {string} name
 * @property {number} parallelism
 * @property {boolean} known      whether any subtask was measured
 * @property {number} busy      of the busiest subtask, 0 to 1
 * @property {number} blocked      of the one that is held up most
 * @property {number | null} rowsIn      per second
 * @property {number | null} rowsOut
 * @property {number | null} watermark      of the slowest subtask
 * @property {string | null} silentSplit      the split of a source that event time waits for
 * @property {number | null} behind
 * @property {number | null} unpublished      bytes
 * @property {number} stateBytes
 * @property {number | null} skew      the rows of the subtask with the most, as a multiple of the mean
 * @property {any[]} tasks
 * @property {any[]} operators
 * @property {any[]} inputs
 */

/** @param {any} detail @returns {VertexLoad[]} */
export function loadsOf(detail) {
  const shown = new Map(detail.vertices.map((/** @type {any} */ vertex) => [vertex.id, vertex]));
  const vertices = detail.graph.vertices ?? detail.vertices;
  return vertices.map((/** @type {any} */ vertex) => loadOf(vertex, shown.get(vertex.id)?.tasks ?? []));
}

/** @param {any} vertex @param {any[]} tasks @returns {VertexLoad} */
function loadOf(vertex, tasks) {
  const operators = vertex.operators ?? [];
  const first = operators[0];
  const last = operators.at(-1);
  const rates = tasks.map((task) => task.rates).filter(Boolean);
  const reads = first?.verb === "read";
  return {
    id: vertex.id, name: vertex.name, parallelism: vertex.parallelism, tasks, operators, inputs: vertex.inputs ?? [],
    known: rates.length > 0,
    busy: Math.max(0, ...rates.map((one) => one.busy)),
    blocked: Math.max(0, ...rates.map((one) => one.blocked)),
    rowsIn: first ? sumRates(rates, first.id, reads ? 1 : 0) : null,
    rowsOut: last ? sumRates(rates, last.id, 1) : null,
    watermark: tasks.length ? Math.min(...tasks.map((task) => task.progress.watermark)) : null,
    silentSplit: silentSplitOf(tasks),
    behind: sumKnown(tasks.map((task) => task.progress.records_behind)),
    unpublished: sumKnown(tasks.map((task) => task.progress.unpublished_bytes)),
    stateBytes: tasks.reduce((sum, task) => sum + task.progress.state_bytes, 0),
    skew: skewOf(tasks.map((task) => task.metrics[first?.id]?.[reads ? "rows_out" : "rows_in"] ?? 0)),
  };
}

/** Of several, the one that has been silent for longest. @param {any[]} tasks @returns {string | null} */
function silentSplitOf(tasks) {
  const silent = tasks.map((task) => task.progress).filter((one) => one.silent_split !== undefined);
  return silent.toSorted((a, b) => (b.silent_us ?? 0) - (a.silent_us ?? 0))[0]?.silent_split ?? null;
}

/** @param {any} detail */
export function totalsOf(detail) {
  const loads = loadsOf(detail);
  const sources = loads.filter((load) => load.operators[0]?.verb === "read");
  const marks = loads.map((load) => load.watermark).filter((mark) => mark !== null);
  const written = loads.flatMap((load) =>
    load.operators.filter((operator) => WRITES.has(operator.verb)).map((operator) => sumRates(load.tasks.map((task) => task.rates).filter(Boolean), operator.id, 0)),
  );
  return {
    rowsIn: sumKnown(sources.map((load) => load.rowsIn)),
    rowsOut: sumKnown(written),
    behind: sumKnown(loads.map((load) => load.behind)),
    watermark: marks.length ? Math.min(...marks) : null,
  };
}

/** What an operator takes (0) or emits (1) a second. @param {any[]} rates @param {string} operator @param {0 | 1} which */
export function sumRates(rates, operator, which) {
  const found = rates.map((one) => one.rows[operator]?.[which]).filter((value) => value !== undefined);
  return found.length ? found.reduce((sum, value) => sum + value, 0) : null;
}

/** @param {(number | null | undefined)[]} values @returns {number | null} */
export function sumKnown(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  return known.length ? known.reduce((sum, value) => sum + Number(value), 0) : null;
}

/** @param {number[]} rows */
function skewOf(rows) {
  const sum = rows.reduce((total, value) => total + value, 0);
  return rows.length > 1 && sum > 0 ? (Math.max(...rows) * rows.length) / sum : null;
}
