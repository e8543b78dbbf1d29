/**
 * A table that can be sorted, and that stays smooth with thousands of rows: of many only those are in the document that
 * are seen.
 */
import { html, useMemo, useRef, useState } from "../vendor/preact.js";
import { Icon } from "./icons.js";

const MANY = 120;
const BEYOND = 12;
const ROW_PX = 53;
const VIEW_PX = 640;

/**
 * @typedef {object} Column
 * @property {string} title
 * @property {(row: any) => any} cell
 * @property {(row: any) => string | number | null | undefined} [by]      what it is sorted by; left out: it is not
 * @property {boolean} [end]      whether it is aligned at its end, as numbers are
 * @property {"phone" | "tablet"} [hide]      up to which width it is left out
 * @property {string} [width]
 */

/**
 * @param {{label: string, columns: Column[], rows: any[], keyOf: (row: any) => string, onRow?: (row: any) => void,
 *   selected?: string, sort?: {column: string, down: boolean} | null}} props
 */
export function Table({ label, columns, rows, keyOf, onRow, selected, sort: first = null }) {
  const [sort, setSort] = useState(first);
  const sorted = useMemo(() => inOrder(rows, columns, sort), [rows, sort]);
  const many = rows.length > MANY;
  const [from, setFrom] = useState(0);
  const frame = useRef(0);
  const scrolled = (/** @type {any} */ event) => {
    const top = event.currentTarget.scrollTop;
    cancelAnimationFrame(frame.current);
    frame.current = requestAnimationFrame(() => setFrom(Math.max(0, Math.floor(top / ROW_PX) - BEYOND)));
  };
  const begin = many ? Math.min(from, Math.max(0, sorted.length - 1)) : 0;
  const end = many ? Math.min(sorted.length, begin + Math.ceil(VIEW_PX / ROW_PX) + 2 * BEYOND) : sorted.length;
  return html`<div class=${`table-frame${many ? " many" : ""}`} onScroll=${many ? scrolled : undefined} tabindex=${many ? 0 : undefined}
      role=${many ? "region" : undefined} aria-label=${many ? label : undefined}>
    <table aria-rowcount=${sorted.length + 1} class=${onRow ? "open" : ""}>
      <caption class="sr">${label}</caption>
      <thead><tr>${columns.map((column) => html`<${Head} key=${column.title} column=${column} sort=${sort} setSort=${setSort} />`)}</tr></thead>
      <tbody>
        ${begin > 0 && html`<tr class="gap" key="before" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${begin * ROW_PX}px` }}></td></tr>`}
        ${sorted.slice(begin, end).map((row, i) => html`
          <tr key=${keyOf(row)} aria-rowindex=${begin + i + 2} onClick=${onRow && ((/** @type {any} */ event) => opened(event, row, onRow))}
              class=${selected === keyOf(row) ? "selected" : ""}>
            ${columns.map((column) => html`<td key=${column.title} class=${classOf(column)}>${column.cell(row)}</td>`)}
          </tr>`)}
        ${end < sorted.length && html`<tr class="gap" key="after" aria-hidden="true"><td colspan=${columns.length} style=${{ height: `${(sorted.length - end) * ROW_PX}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

/** @param {any} props */
function Head({ column, sort, setSort }) {
  const width = column.width ? { width: column.width } : undefined;
  if (!column.by) return html`<th scope="col" class=${classOf(column)} style=${width}>${column.title}</th>`;
  const now = sort?.column === column.title ? (sort.down ? "descending" : "ascending") : "none";
  const turn = () => setSort(now === "none" ? { column: column.title, down: !!column.end } : { column: column.title, down: !sort.down });
  return html`<th scope="col" class=${classOf(column)} style=${width} aria-sort=${now}>
    <button type="button" class="sort" onClick=${turn}>${column.title}${now !== "none" && html`<${Icon} name=${sort.down ? "down" : "up"} />`}</button></th>`;
}

/** A row is opened by its link; a click beside it does the same. @param {any} event @param {any} row @param {(row: any) => void} onRow */
function opened(event, row, onRow) {
  if (event.target.closest("a, button, input, label") || getSelection()?.toString()) return;
  onRow(row);
}

/** @param {Column} column */
const classOf = (column) => [column.end ? "end" : "", column.hide ? `hide-${column.hide}` : ""].join(" ").trim();

/** @param {any[]} rows @param {Column[]} columns @param {{column: string, down: boolean} | null} sort */
function inOrder(rows, columns, sort) {
  const by = columns.find((column) => column.title === sort?.column)?.by;
  if (!by || !sort) return rows;
  const sign = sort.down ? -1 : 1;
  const key = new Map(rows.map((row) => [row, by(row)]));
  return [...rows].sort((a, b) => {
    const [x, y] = [key.get(a), key.get(b)];
    if (x === y) return 0;
    if (x === null || x === undefined) return 1; // what is not known comes last either way
    if (y === null || y === undefined) return -1;
    return x < y ? -sign : sign;
  });
}
