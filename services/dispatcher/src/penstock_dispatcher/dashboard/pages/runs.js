/** Runs on Spark. */
import { html } from "../vendor/preact.js";
import { ago, compact, count, duration, percent, since } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { go, href } from "../core/router.js";
import { Card, Documented, Empty, Note, Ready, State } from "../parts/bits.js";
import { Table } from "../parts/table.js";

export function RunsPage() {
  const polled = usePolled("/penstock/v1/runs");
  return html`<div class="page-head"><h1>Runs on Spark</h1><${Documented} page="runs.html">Runs on Spark by a cluster<//></div>
    <${Ready} polled=${polled} what="the runs">${(/** @type {any} */ list) => html`
      <${NoService} service=${list.service} />
      <${Card} flush>${list.runs.length ? html`<${Table} label="Runs" columns=${COLUMNS} rows=${list.runs} keyOf=${(/** @type {any} */ run) => run.run} onRow=${(/** @type {any} */ run) => go(href("runs", run.run))} />`
        : html`<${Empty} title="Nothing has run on Spark yet"><p>The same pipeline file runs there over all of its input:</p><pre><code>penstock submit examples/departures.py --engine spark</code></pre><//>`}<//>`}<//>`;
}

/** @param {{service: string}} props */
export const NoService = ({ service }) => !service && html`<${Note} tone="warn" title="No pipeline service serves this cluster.">Runs wait until one does. Start one: <code>penstock pipeline</code><//>`;

const COLUMNS = [
  { title: "Run", width: "28%", by: (/** @type {any} */ run) => run.name, cell: (/** @type {any} */ run) => html`<a class="row-link" href=${href("runs", run.run)}>${run.name}</a><span class="row-sub mono">${run.run}</span>` },
  { title: "State", by: (/** @type {any} */ run) => run.state, cell: (/** @type {any} */ run) => html`<${State} state=${run.state} /><span class="row-sub clip" title=${run.reason}>${run.cancel_asked ? "to be cancelled" : run.position ? `${run.position}. in the queue` : run.reason}</span>` },
  { title: "Time", hide: "phone", by: (/** @type {any} */ run) => -run.submitted_us, cell: (/** @type {any} */ run) => html`<span class="num">${run.ended_us && run.began_us ? duration(run.ended_us - run.began_us) : since(run.began_us)}</span><span class="row-sub">submitted ${ago(run.submitted_us)}</span>` },
  { title: "Progress", hide: "phone", cell: (/** @type {any} */ run) => html`<${Progress} progress=${run.progress} />` },
  { title: "Rows", end: true, hide: "tablet", cell: (/** @type {any} */ run) => html`<span class="num">${compact(run.progress?.rows)}</span>` },
  { title: "Parallelism", end: true, hide: "tablet", cell: (/** @type {any} */ run) => html`<span class="num">${count(run.parallelism || null)}</span>` },
  { title: "Attempts", end: true, hide: "tablet", by: (/** @type {any} */ run) => run.attempts, cell: (/** @type {any} */ run) => html`<span class="num">${count(run.attempts)}</span>` },
];

/** @param {{progress: any}} props */
export function Progress({ progress }) {
  if (!progress) return html`<span class="faint">–</span>`;
  const share = progress.stages ? progress.stages_done / progress.stages : 0;
  return html`<span class="load"><span class="load-bar" aria-hidden="true"><span class="load-busy" style=${{ width: percent(share) }}></span></span><span class="num">${progress.stages_done} of ${progress.stages} stages</span></span>
    <span class="row-sub clip" title=${progress.at}>${progress.at}${progress.tasks ? `, ${progress.tasks_done} of ${progress.tasks} tasks` : ""}</span>`;
}
