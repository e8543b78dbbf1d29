/** One job: what it is doing, and its tabs. All tabs show parts of one document, which is asked for again and again. */
import { html, useEffect } from "../vendor/preact.js";
import { count, duration, NONE, percent, plural, rate, since, time, watermarkLag } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { href } from "../core/router.js";
import { bytes, compact } from "../core/format.js";
import { Copy, Documented, Fact, Facts, Note, pressure, Ready, shownState, State, useNow, useSeen, useStale, useTrace } from "../parts/bits.js";
import { loadsOf, totalsOf } from "../core/loads.js";
import { takesJobs } from "../parts/allowed.js";
import { Actions } from "./actions.js";
import { CheckpointsTab } from "./checkpoints.js";
import { ConfigurationTab, HistoryTab, SourceTab } from "./described.js";
import { ExceptionsTab } from "./exceptions.js";
import { LogsTab } from "./logs.js";
import { OverviewTab } from "./overview.js";

const ENDED = new Set(["FINISHED", "STOPPED", "CANCELED", "FAILED"]);
const REPLAYED_US = 86_400_000_000; // rows older than a day are replayed, which is no delay of the job
const TABS = [
  ["overview", "Overview", OverviewTab], ["checkpoints", "Checkpoints", CheckpointsTab], ["exceptions", "Exceptions", ExceptionsTab],
  ["logs", "Logs", LogsTab], ["source", "Source", SourceTab], ["configuration", "Configuration", ConfigurationTab], ["history", "History", HistoryTab],
];

/** @param {{path: string[]}} props */
export function JobPage({ path }) {
  const [, job = "", tab = "overview"] = path;
  const url = `/penstock/v1/jobs/${encodeURIComponent(job)}`;
  const polled = usePolled(url);
  const name = polled.data?.summary.name;
  useEffect(() => {
    if (name) document.title = `${name} · Penstock`;
  }, [name, tab]);
  return html`<nav class="crumbs" aria-label="Where this is"><a href=${href("jobs")}>Jobs</a> / ${name ?? job}</nav>
    <${Ready} polled=${polled} what="this job" lines=${10}>${(/** @type {any} */ detail) => html`
      <${JobView} detail=${detail} at=${polled.at} tab=${tab} path=${path} url=${url} reload=${polled.reload} />`}<//>`;
}

/** @param {any} props */
function JobView({ detail, at, tab, path, url, reload }) {
  const { summary } = detail;
  const ended = ENDED.has(summary.state);
  const Tab = (TABS.find(([key]) => key === tab) ?? TABS[0])[2];
  const failures = detail.failures.length;
  const notes = { exceptions: failures, checkpoints: summary.last_checkpoint };
  useStale(!ended && takesJobs() && (!summary.live || detail.deaf_us > 0));
  return html`
    <header class="job-head">
      <div class="job-title"><h1>${summary.name}</h1><${State} state=${shownState(summary)} /></div>
      <${Times} detail=${detail} ended=${ended} />
      <${Actions} summary=${summary} url=${url} ended=${ended} done=${reload} />
    </header>
    <${Warnings} detail=${detail} ended=${ended} tab=${tab} />
    ${!ended && html`<${Numbers} detail=${detail} at=${at} />`}
    <nav class="tabs" aria-label="About this job" ref=${useSeen(tab)}><ul>${TABS.map(([key, title]) => html`
      <li key=${key}><a href=${href("jobs", path[1], key)} aria-current=${key === tab ? "page" : undefined}>${title}
        ${notes[key] > 0 && html`<span class="count num">${compact(notes[key])}</span>`}</a></li>`)}</ul></nav>
    <${Tab} detail=${detail} url=${url} path=${path} at=${at} ended=${ended} />`;
}

/** @param {any} props */
function Times({ detail, ended }) {
  const now = useNow();
  const { summary } = detail;
  return html`<p class="job-times"><span class="mono">${summary.job.slice(0, 8)}</span><${Copy} text=${summary.job} label="the job's id" />
    <span>${ended ? `ran for ${duration(summary.ended_us - summary.submitted_us)}` : `for ${since(summary.submitted_us, now)}`}</span>
    <span>submitted ${time(summary.submitted_us)}</span>
    <span>parallelism ${count(summary.parallelism)}</span>
    <span>${detail.attempts > 1 ? plural(detail.attempts - 1, "restart") : "never restarted"}</span>
    ${detail.restored !== null && html`<span>went on from checkpoint ${detail.restored}</span>`}</p>`;
}

/** @param {any} props */
function Warnings({ detail, ended, tab }) {
  const { summary } = detail;
  const tasks = detail.vertices.flatMap((/** @type {any} */ vertex) => vertex.tasks.map((/** @type {any} */ task) => ({ ...task, vertex: vertex.name })));
  const waiting = tasks.filter((/** @type {any} */ task) => task.waits_for);
  return html`
    ${summary.state === "FAILED" && html`<${Note} tone="bad" title="This job has failed." actions=${tab !== "exceptions" && html`<a class="button small" href=${href("jobs", summary.job, "exceptions")}>See why</a>`}>${summary.reason}
      ${takesJobs() && html`<br />Mend what the reason names, then start another job in its place: <code>penstock submit FILE --from-savepoint ${summary.job.slice(0, 8)}</code> <${Documented} page="operating.html#attempts-that-fail">Attempts that fail<//>`}<//>`}
    ${summary.failures > 0 && html`<${Note} tone="warn" title=${`${plural(summary.failures, "attempt has", "attempts have")} failed since the newest checkpoint.`} actions=${tab !== "exceptions" && html`<a class="button small" href=${href("jobs", summary.job, "exceptions")}>See why</a>`}>${summary.failure}<br />Until a checkpoint is complete, every attempt reads the same rows again. <code>penstock doctor ${summary.job.slice(0, 8)}</code> says more. <${Documented} page="operating.html#attempts-that-fail">Attempts that fail<//><//>`}
    ${!ended && summary.reason && html`<${Note} title="Under way.">${summary.reason}<//>`}
    ${ended && summary.state !== "FAILED" && summary.reason && html`<${Note}>${summary.reason}<//>`}
    ${summary.missing_slots > 0 && html`<${Note} tone="warn" title=${`It waits for ${plural(summary.missing_slots, "slot")}.`}>Start another task manager (<code>penstock taskmanager</code>), rescale the job, or stop another one. <${Documented} page="operating.html#without-slots">Without slots<//><//>`}
    ${!ended && !summary.live && html`<${Note} tone="warn" title="No leader shows this job now.">What is shown is what the store says of it.<//>`}
    ${detail.deaf_us > 0 && html`<${Note} tone="warn" title="The leader hears nothing from Kafka.">What it says of subtasks is ${duration(detail.deaf_us)} old.<//>`}
    ${detail.missing && html`<${Note} tone="warn" title="Not all is known.">${detail.missing}<//>`}
    ${waiting.length > 0 && html`<${Note} tone="warn" title=${`${plural(waiting.length, "subtask waits", "subtasks wait")} for something that does not answer.`}>${waiting[0].vertex}[${waiting[0].index}]: ${waiting[0].waits_for}<//>`}`;
}

/** @param {any} props */
function Numbers({ detail, at }) {
  const totals = totalsOf(detail);
  const newest = [...detail.checkpoints].reverse().find((/** @type {any} */ one) => one.state === "complete");
  const hot = loadsOf(detail).toSorted((a, b) => b.blocked - a.blocked)[0];
  const rowsIn = useTrace("in", totals.rowsIn, at);
  const rowsOut = useTrace("out", totals.rowsOut, at);
  const lag = watermarkLag(totals.watermark);
  const { summary, checkpoint_interval_us: interval } = detail;
  const ageUs = useNow() * 1000 - (summary.last_checkpoint_us || summary.submitted_us);
  const late = interval > 0 && ageUs > 3 * interval + 60_000_000;
  return html`<${Facts} label="The job in short">
    <${Fact} label="Rows read" value=${`${rate(totals.rowsIn)}/s`} trace=${rowsIn} />
    <${Fact} label="Rows written" value=${`${rate(totals.rowsOut)}/s`} trace=${rowsOut} />
    <${Fact} label="Most backpressure" value=${hot ? percent(hot.blocked) : NONE} note=${hot && hot.blocked >= 0.1 ? hot.name : ""} tone=${hot ? pressure(hot.blocked) : ""} />
    <${Fact} label="Not read yet" value=${compact(totals.behind)} note=${totals.behind === null ? "no source can tell" : "records"} />
    <${Fact} label="Event time lag" value=${lag === null ? NONE : duration(lag)} note=${lag === null ? "" : lag > REPLAYED_US ? "reads history" : "of the slowest"} />
    <${Fact} label="Newest checkpoint" value=${summary.last_checkpoint_us ? `${duration(ageUs)} ago` : NONE} tone=${late ? "bad" : ""}
      note=${newest ? `${bytes(newest.size_bytes)} in ${duration(newest.duration_us)}` : "none yet"} />
  <//>`;
}
