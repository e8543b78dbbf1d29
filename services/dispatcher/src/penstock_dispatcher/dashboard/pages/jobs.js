/** All jobs, and how the running ones do. */
import { html, useMemo, useState } from "../vendor/preact.js";
import { ago, compact, count, duration, plural, rate, since } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { go, href, setQuery, usePlace } from "../core/router.js";
import { Card, Documented, Empty, Fact, Facts, Load, Note, Ready, shownState, State, useStale, useTrace } from "../parts/bits.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/table.js";
import { Allowed, takesJobs } from "../parts/allowed.js";
import { SubmitDialog } from "./submit.js";

const ENDED = new Set(["FINISHED", "STOPPED", "CANCELED", "FAILED"]);
const TROUBLED = new Set(["FAILED", "RESTARTING", "UNOPENED"]);
const troubled = (/** @type {any} */ job) => TROUBLED.has(job.state) || job.missing_slots > 0 || job.failures > 0;
const GROUPS = [
  ["all", "All", () => true],
  ["active", "Active", (/** @type {any} */ job) => !ENDED.has(job.state)],
  ["troubled", "Troubled", (/** @type {any} */ job) => troubled(job)],
  ["ended", "Ended", (/** @type {any} */ job) => ENDED.has(job.state)],
];

export function JobsPage() {
  const polled = usePolled("/penstock/v1/jobs");
  const overview = usePolled("/penstock/v1/overview", 5_000);
  const [submitting, setSubmitting] = useState(false);
  useStale(takesJobs() && isOld(polled.data));
  return html`<div class="page-head"><h1>Jobs</h1><${Documented} page="operating.html">Operate jobs<//>
      <div class="actions"><${Allowed} role="submit" deed="submit"><button class="button primary" onClick=${() => setSubmitting(true)}><${Icon} name="upload" />Submit a job</button><//></div></div>
    ${submitting && html`<${SubmitDialog} onClose=${() => setSubmitting(false)} />`}
    <${Ready} polled=${polled} what="the jobs" lines=${8}>${(/** @type {any} */ list) => html`
      <${Summary} list=${list} overview=${overview.data} at=${polled.at} />
      <${Warnings} list=${list} />
      <${JobTable} jobs=${list.jobs} submit=${() => setSubmitting(true)} />`}<//>`;
}

/** Whether what is shown was so once. @param {any} list */
const isOld = (list) => !!list && (!list.leader || list.deaf_us > 0);

/** @param {any} props */
function Summary({ list, overview, at }) {
  const active = list.jobs.filter((/** @type {any} */ job) => !ENDED.has(job.state));
  const inTrouble = list.jobs.filter((/** @type {any} */ job) => job.state !== "FAILED" && troubled(job));
  const old = isOld(list);
  const failed = list.jobs.filter((/** @type {any} */ job) => job.state === "FAILED").length;
  const loads = old ? [] : active.map((/** @type {any} */ job) => job.load).filter(Boolean);
  const total = (/** @type {string} */ name) => (loads.length ? loads.reduce((/** @type {number} */ sum, /** @type {any} */ load) => sum + load[name], 0) : null);
  const rowsIn = useTrace("in", total("rows_in"), at);
  const used = overview ? overview.slots - overview.free_slots : null;
  return html`<${Facts} label="The cluster in short">
    <${Fact} label="Active jobs" value=${count(active.length)} note=${inTrouble.length ? `${plural(inTrouble.length, "job")} in trouble` : !active.length ? "none" : old ? "how they are is not known" : "all well"} tone=${inTrouble.length ? "warn" : ""} />
    <${Fact} label="Failed" value=${count(failed)} note=${failed ? "ended for good" : "none"} tone=${failed ? "bad" : ""} />
    <${Fact} label="Rows read" value=${`${rate(total("rows_in"))}/s`} trace=${rowsIn} />
    <${Fact} label="Rows written" value=${`${rate(total("rows_out"))}/s`} />
    <${Fact} label="Slots in use" value=${overview ? `${count(used)} of ${count(overview.slots)}` : "–"} note=${overview && plural(overview.workers, "worker process", "worker processes")}
      tone=${overview?.slots && !overview.free_slots ? "warn" : ""} />
  <//>`;
}

/** @param {{list: any}} props */
function Warnings({ list }) {
  const waiting = list.jobs.filter((/** @type {any} */ job) => job.missing_slots > 0);
  const missing = waiting.reduce((/** @type {number} */ sum, /** @type {any} */ job) => sum + job.missing_slots, 0);
  return html`
    ${!list.leader && !takesJobs() && html`<${Note} title="The run has ended, or has not begun.">What is shown is what its directory says.<//>`}
    ${!list.leader && takesJobs() && html`<${Note} tone="bad" title="No coordinator leads this cluster.">What is shown is what the store says; nothing can be asked of jobs until one leads. Start one: <code>penstock coordinator</code> <${Documented} page="runbooks.html#penstocknoleader">What to do<//><//>`}
    ${list.deaf_us > 0 && html`<${Note} tone="warn" title="The leader hears nothing from Kafka.">What it says of subtasks is ${duration(list.deaf_us)} old.<//>`}
    ${list.missing && html`<${Note} tone="warn" title="Not all is known.">${list.missing}<//>`}
    ${missing > 0 && html`<${Note} tone="warn" title=${`${plural(waiting.length, "job waits", "jobs wait")} for ${plural(missing, "slot")}.`}>Start another task manager (<code>penstock taskmanager</code>), or stop a job that is not needed. <${Documented} page="operating.html#without-slots">Without slots<//><//>`}`;
}

const COLUMNS = [
  { title: "Job", by: (/** @type {any} */ job) => job.name.toLowerCase(), width: "26%", cell: (/** @type {any} */ job) => html`
    <a class="row-link" href=${href("jobs", job.job)}>${job.name}</a><span class="row-sub mono">${job.job.slice(0, 8)}</span>` },
  { title: "State", by: (/** @type {any} */ job) => job.state, width: "9.5rem", cell: (/** @type {any} */ job) => html`<${State} state=${shownState(job)} />${subState(job)}` },
  { title: "Time", by: (/** @type {any} */ job) => -job.submitted_us, hide: "phone", cell: (/** @type {any} */ job) => html`
    <span class="num">${job.ended_us ? duration(job.ended_us - job.submitted_us) : since(job.submitted_us)}</span><span class="row-sub">${job.ended_us ? `ended ${ago(job.ended_us)}` : "since submission"}</span>` },
  { title: "Tasks", end: true, hide: "tablet", by: (/** @type {any} */ job) => job.tasks, cell: (/** @type {any} */ job) => html`
    <span class="num">${ENDED.has(job.state) ? count(job.tasks || null) : `${count(job.running_tasks)} / ${count(job.tasks)}`}</span><span class="row-sub num">parallelism ${count(job.parallelism)}</span>` },
  { title: "Rows in", end: true, by: (/** @type {any} */ job) => job.load?.rows_in, cell: (/** @type {any} */ job) => html`<${PerSecond} value=${job.load?.rows_in} />` },
  { title: "Rows out", end: true, hide: "phone", by: (/** @type {any} */ job) => job.load?.rows_out, cell: (/** @type {any} */ job) => html`<${PerSecond} value=${job.load?.rows_out} />` },
  { title: "Busy", hide: "tablet", width: "15rem", by: (/** @type {any} */ job) => job.load?.busy, cell: (/** @type {any} */ job) => html`
    <${Load} several known=${!!job.load} busy=${job.load?.busy} blocked=${job.load?.blocked} />` },
  { title: "Lag", end: true, hide: "tablet", by: (/** @type {any} */ job) => job.load?.records_behind, cell: (/** @type {any} */ job) => html`<span class="num">${compact(job.load?.records_behind)}</span>` },
  { title: "Restarts", end: true, hide: "tablet", by: (/** @type {any} */ job) => job.attempts, cell: (/** @type {any} */ job) => html`
    <span class=${`num${job.attempts > 1 ? " strong" : ""}`}>${job.attempts ? count(job.attempts - 1) : "–"}</span>` },
  { title: "Checkpoint", end: true, hide: "tablet", by: (/** @type {any} */ job) => job.last_checkpoint, cell: (/** @type {any} */ job) => html`<span class="num">${job.last_checkpoint || "–"}</span>` },
];

/** @param {{value: number | undefined}} props */
const PerSecond = ({ value }) => html`<span class="num">${rate(value)}</span>${value !== undefined && html`<span class="unit">/s</span>`}`;

/** @param {any} job */
function subState(job) {
  if (job.missing_slots > 0) return html`<span class="row-sub warn-text">needs ${plural(job.missing_slots, "slot")}</span>`;
  if (job.failures > 0) return html`<span class="row-sub warn-text clip" title=${job.failure}>${plural(job.failures, "failure")} since a checkpoint: ${job.failure}</span>`;
  if (job.reason) return html`<span class="row-sub clip" title=${job.reason}>${job.reason}</span>`;
  return null;
}

/** @param {{jobs: any[], submit: () => void}} props */
function JobTable({ jobs, submit }) {
  const { query } = usePlace();
  const group = GROUPS.find(([key]) => key === query.get("show")) ?? GROUPS[0];
  const text = (query.get("find") ?? "").toLowerCase();
  const shown = useMemo(
    () => jobs.filter((job) => group[2](job) && (!text || job.name.toLowerCase().includes(text) || job.job.startsWith(text))),
    [jobs, group, text],
  );
  if (!jobs.length && !takesJobs()) return html`<${Card}><${Empty} title="The run has not begun yet" icon="clock" /><//>`;
  if (!jobs.length) return html`<${Card}><${Empty} title="No job has been submitted yet">
      <p>Submit one from the command line, and it is here a moment later:</p><pre><code>penstock submit examples/orders.py</code></pre>
      <button class="button" onClick=${submit}>Other ways to submit</button><//><//>`;
  return html`<${Card} flush>
    <div class="filters">
      <div class="segments" role="group" aria-label="Which jobs">${GROUPS.map(([key, title, test]) => html`
        <button key=${key} aria-pressed=${key === group[0]} onClick=${() => setQuery({ show: key === "all" ? "" : key })}>${title}<span class="count num">${count(jobs.filter(test).length)}</span></button>`)}</div>
      <label class="search"><span class="sr">Find by name or id</span><${Icon} name="search" />
        <input type="search" placeholder="Name or id" value=${query.get("find") ?? ""} onInput=${(/** @type {any} */ event) => setQuery({ find: event.target.value })} /></label>
    </div>
    ${shown.length ? html`<${Table} label="Jobs" columns=${COLUMNS} rows=${shown} keyOf=${(/** @type {any} */ job) => job.job} onRow=${(/** @type {any} */ job) => go(href("jobs", job.job))} />`
      : html`<${Empty} title="No job matches" icon="search"><button class="button" onClick=${() => setQuery({ show: "", find: "" })}>Show all jobs</button><//>`}
  <//>`;
}
