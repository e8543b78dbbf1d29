/** Task managers: their worker processes and slots. */
import { html, useState } from "../vendor/preact.js";
import { ago, bytes, count, plural } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { href } from "../core/router.js";
import { Card, Documented, Empty, Fact, Facts, Note, Ready } from "../parts/bits.js";
import { Table } from "../parts/table.js";

const LATE_MS = 5_000;

export function WorkersPage() {
  const polled = usePolled("/penstock/v1/taskmanagers");
  const jobs = usePolled("/penstock/v1/jobs", 10_000);
  const names = new Map((jobs.data?.jobs ?? []).map((/** @type {any} */ job) => [job.job, job.name]));
  return html`<div class="page-head"><h1>Task managers</h1><${Documented} page="clusters.html">Clusters<//></div>
    <${Ready} polled=${polled} what="the task managers">${(/** @type {any} */ list) => html`<${Managers} workers=${list.workers} names=${names} />`}<//>`;
}

/** A worker says where it runs as "name host:port". @param {any} worker */
const managerOf = (worker) => worker.host || "somewhere";
const usedBy = (/** @type {any} */ worker) => Object.values(worker.used).reduce((/** @type {number} */ sum, n) => sum + Number(n), 0);

/** @param {any} props */
function Managers({ workers, names }) {
  const overview = usePolled("/penstock/v1/overview", 5_000);
  if (!workers.length) return html`<${Card}><${Empty} title="No task manager is connected"><p>Jobs wait for slots until there is one:</p><pre><code>penstock taskmanager --slots 2</code></pre><//><//>`;
  const slots = workers.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.slots, 0);
  const used = workers.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + usedBy(one), 0);
  const managers = new Set(workers.map(managerOf));
  const scaling = overview.data?.scaling;
  return html`<${Facts} label="Task managers in short">
      <${Fact} label="Task managers" value=${count(managers.size)} note=${plural(workers.length, "worker process", "worker processes")} />
      <${Fact} label="Slots in use" value=${`${count(used)} of ${count(slots)}`} tone=${used >= slots ? "warn" : ""} />
      <${Fact} label="Subtasks" value=${count(workers.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.tasks, 0))} />
      <${Fact} label="Memory" value=${bytes(workers.reduce((/** @type {number} */ sum, /** @type {any} */ one) => sum + one.memory_bytes, 0))} note="resident, of all workers" />
    <//>
    ${scaling && html`<${Note} tone=${scaling.problem || scaling.short ? "warn" : ""} title="The number of task managers is scaled.">${scaling.standing} of ${scaling.wanted ?? "?"} wanted stand, between ${scaling.least} and ${scaling.most}.${scaling.short ? ` ${plural(scaling.short, "slot")} are missing because of that limit.` : ""} ${scaling.problem}<//>`}
    <${Card} flush title="Worker processes" id="workers-title"><${Table} label="Worker processes" columns=${columns(names)} rows=${workers} keyOf=${(/** @type {any} */ one) => one.worker} /><//>`;
}

/** @param {Map<string, string>} names */
const columns = (names) => [
  { title: "Worker", width: "24%", by: (/** @type {any} */ one) => one.worker, cell: (/** @type {any} */ one) => html`<span class="strong mono clip block" title=${one.worker}>${one.worker}</span><span class="row-sub clip" title=${managerOf(one)}>${managerOf(one)}</span>` },
  { title: "Slots", by: usedBy, cell: (/** @type {any} */ one) => html`<${Slots} used=${usedBy(one)} slots=${one.slots} />` },
  { title: "Jobs", hide: "phone", cell: (/** @type {any} */ one) => html`<${Jobs} used=${one.used} names=${names} />` },
  { title: "Subtasks", end: true, hide: "tablet", by: (/** @type {any} */ one) => one.tasks, cell: (/** @type {any} */ one) => html`<span class="num">${count(one.tasks)}</span>` },
  { title: "Memory", end: true, by: (/** @type {any} */ one) => one.memory_bytes, cell: (/** @type {any} */ one) => html`<span class="num">${bytes(one.memory_bytes || null)}</span>` },
  { title: "Heard", end: true, hide: "phone", by: (/** @type {any} */ one) => one.heard_us, cell: (/** @type {any} */ one) => html`<span class=${`num${Date.now() - one.heard_us / 1000 > LATE_MS ? " warn-text" : ""}`}>${Date.now() - one.heard_us / 1000 < 2_000 ? "now" : ago(one.heard_us)}</span>` },
];

/** @param {any} props */
const Slots = ({ used, slots }) => html`<span class="slots"><span aria-hidden="true">${Array.from({ length: Math.min(slots, 12) }, (_, i) => html`<i key=${i} class=${i < used ? "used" : ""}></i>`)}</span><span class="num">${used} of ${slots}</span></span>`;

/** @param {any} props */
function Jobs({ used, names }) {
  const [all, setAll] = useState(false);
  const found = Object.keys(used);
  const shown = all ? found : found.slice(0, 3);
  return html`${shown.map((job) => html`<a key=${job} class="chip" href=${href("jobs", job)}>${names.get(job) ?? job.slice(0, 8)}</a>`)}
    ${found.length > shown.length && html`<button class="link" onClick=${() => setAll(true)}>and ${found.length - shown.length} more</button>`}${!found.length && html`<span class="faint">free</span>`}`;
}
