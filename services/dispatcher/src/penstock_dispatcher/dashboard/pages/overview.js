/** The job graph, its vertices as a table, and one vertex with its operators and subtasks. */
import { html } from "../vendor/preact.js";
import { bytes, compact, count, duration, percent, rate, since, watermark, watermarkLag } from "../core/format.js";
import { loadsOf, sumRates } from "../core/loads.js";
import { go, href } from "../core/router.js";
import { Card, Empty, Load, State } from "../parts/bits.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/table.js";
import { JobGraph } from "./graph.js";

/** @param {any} props */
export function OverviewTab({ detail, path, ended }) {
  const loads = loadsOf(detail);
  const [, job, , selected = ""] = path;
  const vertex = loads.find((load) => load.id === selected);
  if (!loads.length) return html`<${Card}><${Empty} title="The graph of this job cannot be shown">Another version of Penstock wrote it.<//><//>`;
  return html`<${Card} flush title="Graph" id="graph-title" actions=${html`<span>${ended ? "as it was submitted" : "choose a vertex to see its subtasks"}</span>`}>
      <${JobGraph} loads=${loads} job=${job} selected=${selected} /><//>
    ${vertex ? html`<${Vertex} load=${vertex} job=${job} detail=${detail} />` : html`<${Vertices} loads=${loads} job=${job} />`}`;
}

/** @param {{value: number | null}} props */
const Rate = ({ value }) => html`<span class="num">${rate(value)}</span>${value !== null && html`<span class="unit">/s</span>`}`;

/** @param {{mark: number | null}} props */
export function Watermark({ mark }) {
  const lag = watermarkLag(mark);
  return html`<span class="num">${lag === null ? watermark(mark) : duration(lag)}</span>${lag !== null && html`<span class="row-sub num">${watermark(mark)}</span>`}`;
}

/** @param {{skew: number | null}} props */
const Skew = ({ skew }) => skew === null ? html`<span class="faint">–</span>` : html`<span class=${skew >= 1.5 ? "tag" : "num"} data-tone=${skew >= 3 ? "bad" : "warn"}>${skew.toFixed(2)}×</span>`;

/** @param {any} props */
function Vertices({ loads, job }) {
  const columns = [
    { title: "Vertex", width: "26%", by: (/** @type {any} */ load) => load.name, cell: (/** @type {any} */ load) => html`<a class="row-link" href=${href("jobs", job, "overview", load.id)}>${load.name.replaceAll(" -> ", " → ")}</a><span class="row-sub mono">${load.id} · parallelism ${load.parallelism}</span>` },
    { title: "Rows in", end: true, by: (/** @type {any} */ load) => load.rowsIn, cell: (/** @type {any} */ load) => html`<${Rate} value=${load.rowsIn} />` },
    { title: "Rows out", end: true, hide: "phone", by: (/** @type {any} */ load) => load.rowsOut, cell: (/** @type {any} */ load) => html`<${Rate} value=${load.rowsOut} />` },
    { title: "Busy", hide: "phone", width: "15rem", by: (/** @type {any} */ load) => load.busy, cell: (/** @type {any} */ load) => html`<${Load} several known=${load.known} busy=${load.busy} blocked=${load.blocked} />` },
    { title: "Skew", end: true, hide: "tablet", by: (/** @type {any} */ load) => load.skew, cell: (/** @type {any} */ load) => html`<${Skew} skew=${load.skew} />` },
    { title: "Behind", end: true, hide: "tablet", by: (/** @type {any} */ load) => load.behind, cell: (/** @type {any} */ load) => html`<span class="num">${compact(load.behind)}</span>` },
    { title: "Event time lag", end: true, hide: "tablet", by: (/** @type {any} */ load) => watermarkLag(load.watermark), cell: (/** @type {any} */ load) => html`<${Watermark} mark=${load.watermark} />` },
    { title: "State", end: true, by: (/** @type {any} */ load) => load.stateBytes, cell: (/** @type {any} */ load) => html`<span class="num">${load.tasks.length ? bytes(load.stateBytes) : "–"}</span>` },
    { title: "To publish", end: true, hide: "tablet", by: (/** @type {any} */ load) => load.unpublished, cell: (/** @type {any} */ load) => html`<span class="num">${bytes(load.unpublished)}</span>` },
  ];
  return html`<${Card} flush title="Vertices" id="vertices-title"><${Table} label="Vertices" columns=${columns} rows=${loads} keyOf=${(/** @type {any} */ load) => load.id}
    onRow=${(/** @type {any} */ load) => go(href("jobs", job, "overview", load.id))} /><//>`;
}

/** @param {any} props */
function Vertex({ load, job, detail }) {
  const complete = detail.checkpoints.filter((/** @type {any} */ one) => one.state === "complete");
  const close = html`<a class="button small" href=${href("jobs", job)}><${Icon} name="cross" />Close</a>`;
  return html`<${Card} flush title=${load.name.replaceAll(" -> ", " → ")} id="vertex-title" actions=${close}>
      <${Operators} load=${load} /><//>
    <${Card} flush title=${`Subtasks (${count(load.parallelism)})`} id="subtasks-title" actions=${load.skew !== null && html`<span>skew <${Skew} skew=${load.skew} /></span>`}>
      <${Subtasks} load=${load} newest=${detail.summary.last_checkpoint} complete=${complete} /><//>
    <${Splits} load=${load} />`;
}

/** Of a source: the splits, such as partitions of a topic, that are furthest behind. @param {any} props */
function Splits({ load }) {
  const splits = load.tasks.flatMap((/** @type {any} */ task) => Object.entries(task.progress.splits_behind ?? {})
    .map(([split, behind]) => ({ split, behind, subtask: task.index })));
  if (!splits.length) return null;
  splits.sort((/** @type {any} */ one, /** @type {any} */ other) => other.behind - one.behind);
  const columns = [
    { title: "Split", by: (/** @type {any} */ one) => one.split, cell: (/** @type {any} */ one) => html`<span class="strong mono">${one.split}</span>` },
    { title: "Subtask", end: true, by: (/** @type {any} */ one) => one.subtask, cell: (/** @type {any} */ one) => html`<span class="num">${one.subtask}</span>` },
    { title: "Behind", end: true, by: (/** @type {any} */ one) => one.behind, cell: (/** @type {any} */ one) => html`<span class="num">${count(one.behind)}</span><span class="share" aria-hidden="true"><span style=${{ width: percent(one.behind / splits[0].behind) }}></span></span>` },
  ];
  return html`<${Card} flush title="Splits furthest behind" id="splits-title"><${Table} label="Splits furthest behind" columns=${columns} rows=${splits}
    keyOf=${(/** @type {any} */ one) => `${one.subtask}/${one.split}`} /><//>`;
}

/** @param {any} props */
function Operators({ load }) {
  const sum = (/** @type {any} */ operator, /** @type {string} */ name) => load.tasks.reduce((/** @type {number} */ total, /** @type {any} */ task) => total + (task.metrics[operator.id]?.[name] ?? 0), 0);
  const rates = load.tasks.map((/** @type {any} */ task) => task.rates).filter(Boolean);
  const total = (/** @type {string} */ title, /** @type {string} */ name, show = count) => ({
    title, end: true, hide: "tablet", by: (/** @type {any} */ operator) => sum(operator, name),
    cell: (/** @type {any} */ operator) => html`<span class=${`num${sum(operator, name) ? "" : " faint"}`}>${load.tasks.length ? show(sum(operator, name)) : "–"}</span>` });
  const columns = [
    { title: "Operator", width: "24%", cell: (/** @type {any} */ operator) => html`<span class="strong">${operator.verb}</span><span class="row-sub mono">${operator.id}</span>` },
    { title: "Settings", hide: "phone", cell: (/** @type {any} */ operator) => html`<span class="faint clamp" title=${settingsOf(operator)}>${settingsOf(operator)}</span>` },
    { title: "Rows in", end: true, cell: (/** @type {any} */ operator) => html`<${Rate} value=${sumRates(rates, operator.id, 0)} /><span class="row-sub num">${compact(sum(operator, "rows_in"))}</span>` },
    { title: "Rows out", end: true, cell: (/** @type {any} */ operator) => html`<${Rate} value=${sumRates(rates, operator.id, 1)} /><span class="row-sub num">${compact(sum(operator, "rows_out"))}</span>` },
    total("Late", "late_rows"), total("Bad", "bad_rows"), total("Failed calls", "failed_calls"),
    total("Forgotten", "forgotten_keys"), total("Lost", "lost_changes"),
    { ...total("State", "state_bytes", bytes), hide: undefined },
  ];
  return html`<${Table} label="Operators" columns=${columns} rows=${load.operators} keyOf=${(/** @type {any} */ operator) => operator.id} />`;
}

/** @param {any} operator */
const settingsOf = (operator) => [...Object.entries(operator.settings).map(([key, value]) => `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`), operator.guarantee].filter(Boolean).join(", ");

/** @param {any} props */
function Subtasks({ load, newest, complete }) {
  const first = load.operators[0];
  const source = first?.verb === "read";
  const rows = (/** @type {any} */ task) => task.metrics[first?.id]?.[source ? "rows_out" : "rows_in"] ?? 0;
  const most = Math.max(1, ...load.tasks.map(rows));
  const sink = load.operators.some((/** @type {any} */ operator) => ["write", "publish"].includes(operator.verb));
  const columns = [
    { title: "Subtask", by: (/** @type {any} */ task) => task.index, cell: (/** @type {any} */ task) => html`<span class="strong num">${task.index}</span><span class="row-sub mono clip">${task.worker || "no worker"}</span>` },
    { title: "State", by: (/** @type {any} */ task) => task.state, cell: (/** @type {any} */ task) => html`<${State} state=${task.state} /><span class="row-sub">${task.waits_for ? `waits for ${task.waits_for}` : since(task.since_us[task.state])}</span>` },
    { title: source ? "Rows read" : "Rows in", end: true, by: rows, cell: (/** @type {any} */ task) => html`<span class="num">${compact(rows(task))}</span><span class="share" aria-hidden="true"><span style=${{ width: percent(rows(task) / most) }}></span></span>` },
    { title: "Rate", end: true, hide: "phone", by: (/** @type {any} */ task) => task.rates?.rows[first?.id]?.[source ? 1 : 0], cell: (/** @type {any} */ task) => html`<${Rate} value=${task.rates?.rows[first?.id]?.[source ? 1 : 0] ?? null} />` },
    { title: "Busy", hide: "phone", width: "15rem", by: (/** @type {any} */ task) => task.rates?.busy, cell: (/** @type {any} */ task) => html`<${Load} known=${!!task.rates} busy=${task.rates?.busy} blocked=${task.rates?.blocked} />` },
    ...(load.behind === null ? [] : [{ title: "Behind", end: true, by: (/** @type {any} */ task) => task.progress.records_behind, cell: (/** @type {any} */ task) => html`<span class="num">${count(task.progress.records_behind)}</span>` }]),
    { title: "Event time lag", end: true, hide: "tablet", by: (/** @type {any} */ task) => watermarkLag(task.progress.watermark), cell: (/** @type {any} */ task) => html`<${Watermark} mark=${task.progress.watermark} />` },
    { title: "State size", end: true, hide: "tablet", by: (/** @type {any} */ task) => task.progress.state_bytes, cell: (/** @type {any} */ task) => html`<span class="num">${bytes(task.progress.state_bytes)}</span>` },
    ...(sink ? [{ title: "Published", end: true, hide: "phone", by: (/** @type {any} */ task) => task.published, cell: (/** @type {any} */ task) => html`<${Published} task=${task} newest=${newest} complete=${complete} />` }] : []),
  ];
  if (!load.tasks.length) return html`<${Empty} title="No subtask is known" icon="clock">They are shown while the job runs and a leader looks after it.<//>`;
  return html`<${Table} label="Subtasks" columns=${columns} rows=${load.tasks} keyOf=${(/** @type {any} */ task) => String(task.index)} />`;
}

/** How far a sink's rows are visible: what it is behind the newest complete checkpoint, and for how long. @param {any} props */
function Published({ task, newest, complete }) {
  const behind = Math.max(0, newest - task.published);
  const first = complete.find((/** @type {any} */ one) => one.checkpoint > task.published);
  const said = behind === 0 ? "up to date" : `${behind} behind${first?.ended_us ? `, for ${since(first.ended_us)}` : ""}`;
  return html`<span class="num">${task.published || "–"}</span><span class="row-sub num">${said}${task.progress.unpublished_bytes ? ` · ${bytes(task.progress.unpublished_bytes)}` : ""}</span>`;
}

