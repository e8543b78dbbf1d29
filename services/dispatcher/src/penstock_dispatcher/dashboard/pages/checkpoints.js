/** Checkpoints: how they went, the newest in detail, and the savepoints that are kept. */
import { html, useState } from "../vendor/preact.js";
import { ago, bytes, count, duration, NONE, time } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { Card, Copy, Empty, Fact, Facts, Ready, State } from "../parts/bits.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/table.js";

/** @param {any} props */
export function CheckpointsTab({ detail, url }) {
  const polled = usePolled(`${url}/checkpoints`, 4_000);
  const [chosen, setChosen] = useState(/** @type {number | null} */ (null));
  return html`<${Ready} polled=${polled} what="the checkpoints">${(/** @type {any} */ list) => {
    if (!list.checkpoints.length) return html`<${Card}><${Empty} title="No checkpoint yet" icon="save">The first one is taken one interval after the job has started; see Configuration.<//><//>`;
    const views = new Map(detail.checkpoints.map((/** @type {any} */ one) => [one.checkpoint, one]));
    const rows = list.checkpoints.map((/** @type {any} */ one) => ({ ...one, view: views.get(one.checkpoint) }));
    const shown = rows.find((/** @type {any} */ one) => one.checkpoint === chosen);
    return html`<${Summary} rows=${rows} />
      ${shown && html`<${Detail} row=${shown} detail=${detail} close=${() => setChosen(null)} />`}
      <${Card} flush title="History" id="history-title" actions=${html`<span>newest first, up to 100</span>`}>
        <${Bars} rows=${rows} chosen=${chosen} choose=${setChosen} />
        <${Table} label="Checkpoints" columns=${columns(setChosen)} rows=${rows} keyOf=${(/** @type {any} */ one) => String(one.checkpoint)} selected=${String(chosen)}
          onRow=${(/** @type {any} */ one) => setChosen(one.checkpoint === chosen ? null : one.checkpoint)} /><//>
      <${Savepoints} job=${detail.summary.job} />`;
  }}<//>`;
}

/** @param {{rows: any[]}} props */
function Summary({ rows }) {
  const complete = rows.filter((one) => one.state === "complete");
  const failed = rows.filter((one) => one.state === "aborted" && one.reason);
  const took = complete.map((one) => one.duration_us).filter((value) => value !== null).sort((a, b) => a - b);
  const newest = complete[0];
  return html`<${Facts} label="Checkpoints in short">
    <${Fact} label="Newest complete" value=${newest ? newest.checkpoint : NONE} note=${newest?.triggered_us ? ago(newest.triggered_us) : ""} />
    <${Fact} label="Duration" value=${took.length ? duration(took[Math.floor(took.length / 2)]) : NONE} note=${took.length ? `median; longest ${duration(took.at(-1))}` : ""} />
    <${Fact} label="Size" value=${bytes(newest?.size_bytes)} note="of the newest" />
    <${Fact} label="Standstill" value=${duration(newest?.sync_us)} note="longest, of a subtask" />
    <${Fact} label="Failed" value=${count(failed.length)} note=${`of the last ${rows.length}`} tone=${failed.length ? "warn" : ""} />
  <//>`;
}

/** Durations as bars, oldest first: whether they grow is seen at once. @param {any} props */
function Bars({ rows, chosen, choose }) {
  const known = rows.filter((/** @type {any} */ one) => one.duration_us !== null || one.state !== "complete").slice(0, 60).reverse();
  const most = Math.max(1, ...known.map((/** @type {any} */ one) => one.duration_us ?? 0));
  if (known.length < 3) return null;
  return html`<div class="bars" role="group" aria-label="Durations, oldest first">${known.map((/** @type {any} */ one) => html`
    <button key=${one.checkpoint} class="bar" data-state=${one.state} aria-pressed=${one.checkpoint === chosen} onClick=${() => choose(one.checkpoint === chosen ? null : one.checkpoint)}
      aria-label=${`Checkpoint ${one.checkpoint}, ${one.state}, ${duration(one.duration_us)}`} title=${`${one.checkpoint}: ${one.state === "complete" ? duration(one.duration_us) : one.state}`}>
      <span style=${{ height: `${one.duration_us === null ? 100 : Math.max(4, (one.duration_us / most) * 100)}%` }}></span></button>`)}</div>`;
}

/** @param {(n: number) => void} choose */
const columns = (choose) => [
  { title: "Checkpoint", by: (/** @type {any} */ one) => one.checkpoint, cell: (/** @type {any} */ one) => html`<button class="link num" onClick=${() => choose(one.checkpoint)}>${one.checkpoint}</button>${one.savepoint && html` <span class="tag" data-tone="done">savepoint</span>`}` },
  { title: "State", cell: (/** @type {any} */ one) => html`<${State} state=${one.state} />${one.reason && html`<span class="row-sub clip" title=${one.reason}>${one.reason}</span>`}` },
  { title: "Triggered", hide: "phone", by: (/** @type {any} */ one) => one.triggered_us, cell: (/** @type {any} */ one) => html`<span class="num">${time(one.triggered_us)}</span>` },
  { title: "Duration", end: true, by: (/** @type {any} */ one) => one.duration_us, cell: (/** @type {any} */ one) => html`<span class="num">${duration(one.duration_us)}</span>` },
  { title: "Size", end: true, by: (/** @type {any} */ one) => one.size_bytes, cell: (/** @type {any} */ one) => html`<span class="num">${one.state === "aborted" ? NONE : bytes(one.size_bytes)}</span>` },
  { title: "Alignment", end: true, hide: "tablet", by: (/** @type {any} */ one) => alignment(one), cell: (/** @type {any} */ one) => html`<span class="num">${duration(alignment(one))}</span>` },
  { title: "Standstill", end: true, hide: "tablet", by: (/** @type {any} */ one) => one.sync_us, cell: (/** @type {any} */ one) => html`<span class="num">${one.state === "complete" ? duration(one.sync_us) : NONE}</span>` },
];

/** The longest of a subtask; only of the newest checkpoints. @param {any} one */
function alignment(one) {
  const acks = Object.values(one.view?.acks ?? {}).flat();
  return acks.length ? Math.max(...acks.map((/** @type {any} */ ack) => ack[5])) : null;
}

/** @param {any} props */
function Detail({ row, detail, close }) {
  const names = new Map((detail.graph.vertices ?? detail.vertices).map((/** @type {any} */ vertex) => [vertex.id, vertex]));
  const vertices = Object.entries(row.view?.acks ?? {}).map(([id, acks]) => ({ id, acks, vertex: names.get(id) }));
  const most = (/** @type {any} */ one, /** @type {number} */ at) => Math.max(0, ...one.acks.map((/** @type {any} */ ack) => ack[at]));
  const table = [
    { title: "Vertex", cell: (/** @type {any} */ one) => html`<span class="strong">${one.vertex?.name.replaceAll(" -> ", " → ") ?? one.id}</span>` },
    { title: "Acknowledged", end: true, cell: (/** @type {any} */ one) => html`<span class="num">${one.acks.length} of ${one.vertex?.parallelism ?? "?"}</span>` },
    { title: "Last after", end: true, cell: (/** @type {any} */ one) => html`<span class="num">${duration(most(one, 1) - row.view.triggered_us)}</span>` },
    { title: "Size", end: true, cell: (/** @type {any} */ one) => html`<span class="num">${bytes(one.acks.reduce((/** @type {number} */ sum, /** @type {any} */ ack) => sum + ack[2], 0))}</span>` },
    { title: "Standstill", end: true, hide: "phone", cell: (/** @type {any} */ one) => html`<span class="num">${duration(most(one, 3))}</span>` },
    { title: "Upload", end: true, hide: "phone", cell: (/** @type {any} */ one) => html`<span class="num">${duration(most(one, 4))}</span>` },
    { title: "Alignment", end: true, hide: "phone", cell: (/** @type {any} */ one) => html`<span class="num">${duration(most(one, 5))}</span>` },
  ];
  return html`<${Card} flush title=${`Checkpoint ${row.checkpoint}`} id="checkpoint-title" actions=${html`<button class="button small" onClick=${close}><${Icon} name="cross" />Close</button>`}>
    <div class="pad">${row.reason && html`<p>${row.reason}</p>`}${row.manifest && html`<p class="mono faint wrap">${row.manifest} <${Copy} text=${row.manifest} label="the key of its manifest" /></p>`}</div>
    ${vertices.length ? html`<${Table} label="By vertex: the slowest subtask" columns=${table} rows=${vertices} keyOf=${(/** @type {any} */ one) => one.id} />`
      : html`<div class="pad faint">What its subtasks acknowledged is remembered of the newest checkpoints only.</div>`}<//>`;
}

/** @param {{job: string}} props */
function Savepoints({ job }) {
  const polled = usePolled(`/penstock/v1/savepoints?job=${job}`, 10_000);
  const rows = polled.data?.savepoints.toReversed() ?? [];
  if (!rows.length) return null;
  const table = [
    { title: "Savepoint", cell: (/** @type {any} */ one) => html`<span class="num strong">${one.checkpoint}</span><span class="row-sub">${one.kind === "checkpoint" ? "the last checkpoint" : "savepoint"}</span>` },
    { title: "Manifest", cell: (/** @type {any} */ one) => html`<code class="wrap">${one.manifest}</code>` },
    { title: "Key", end: true, cell: (/** @type {any} */ one) => html`<${Copy} text=${one.manifest} label="the key" />` },
  ];
  return html`<${Card} flush title="Jobs can start from" id="savepoints-title"><${Table} label="Savepoints" columns=${table} rows=${rows} keyOf=${(/** @type {any} */ one) => one.manifest} /><//>`;
}
