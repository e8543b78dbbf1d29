/** Schedules of runs on Spark: what is due, what has been, pause and resume. */
import { html, useState } from "../vendor/preact.js";
import { post } from "../core/api.js";
import { ago, duration, plural, time } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { go, href } from "../core/router.js";
import { Card, Documented, Empty, Fact, Facts, Note, Ready, State } from "../parts/bits.js";
import { Allowed } from "../parts/allowed.js";
import { Confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/table.js";
import { flat, Pairs } from "./described.js";
import { NoService } from "./runs.js";

export function SchedulesPage() {
  const polled = usePolled("/penstock/v1/schedules", 4_000);
  return html`<div class="page-head"><h1>Schedules</h1><${Documented} page="runs.html#every-day">Every day<//></div>
    <${Ready} polled=${polled} what="the schedules">${(/** @type {any} */ list) => html`<${NoService} service=${list.service} />
      <${Card} flush>${list.schedules.length ? html`<${Table} label="Schedules" columns=${COLUMNS} rows=${list.schedules} keyOf=${(/** @type {any} */ one) => one.name} onRow=${(/** @type {any} */ one) => go(href("schedules", one.name))} />`
        : html`<${Empty} title="Nothing is scheduled" icon="clock"><p>Let a pipeline run on Spark at times of its own:</p><pre><code>penstock schedule add examples/orders_daily.py --cron "0 3 * * *"</code></pre><//>`}<//>`}<//>`;
}

const COLUMNS = [
  { title: "Schedule", width: "26%", by: (/** @type {any} */ one) => one.name, cell: (/** @type {any} */ one) => html`<a class="row-link" href=${href("schedules", one.name)}>${one.name}</a><span class="row-sub">${one.pipeline}</span>` },
  { title: "State", by: (/** @type {any} */ one) => one.state, cell: (/** @type {any} */ one) => html`<${State} state=${one.state} /><span class="row-sub clip" title=${one.reason}>${one.reason}</span>` },
  { title: "When", hide: "phone", cell: (/** @type {any} */ one) => html`<code>${one.cron}</code><span class="row-sub">${one.timezone}</span>` },
  { title: "Next run", cell: (/** @type {any} */ one) => html`<${Due} due=${one.next} state=${one.next_state} />` },
  { title: "Behind", end: true, by: (/** @type {any} */ one) => one.behind, cell: (/** @type {any} */ one) => html`<span class=${one.behind > 1 ? "tag num" : "num"} data-tone="warn">${one.behind >= 1000 ? "1,000+" : one.behind}</span>` },
  { title: "Last", hide: "tablet", cell: (/** @type {any} */ one) => one.last ? html`<${State} state=${one.last.state} /><span class="row-sub">${ago(one.last.end_us)}</span>` : html`<span class="faint">–</span>` },
];

/** @param {any} props */
const Due = ({ due, state }) => due ? html`<span class="num">${time(due.end_us)}</span><span class="row-sub">${state ? state.toLowerCase() : due.end_us / 1000 > Date.now() ? `in ${duration(due.end_us - Date.now() * 1000)}` : "due"}</span>` : html`<span class="faint">none</span>`;

/** @param {{name: string}} props */
export function SchedulePage({ name }) {
  const url = `/penstock/v1/schedules/${encodeURIComponent(name)}`;
  const polled = usePolled(url, 4_000);
  return html`<nav class="crumbs" aria-label="Where this is"><a href=${href("schedules")}>Schedules</a> / ${name}</nav>
    <${Ready} polled=${polled} what="this schedule">${(/** @type {any} */ detail) => html`<${Schedule} detail=${detail} url=${url} reload=${polled.reload} />`}<//>`;
}

/** @param {any} props */
function Schedule({ detail, url, reload }) {
  const { summary } = detail;
  const [asking, setAsking] = useState("");
  const verb = summary.state === "ACTIVE" ? "pause" : "resume";
  const runs = [
    { title: "Run", cell: (/** @type {any} */ one) => html`<a class="row-link mono" href=${href("runs", one.run)}>${one.run}</a>` },
    { title: "Period", cell: (/** @type {any} */ one) => html`<span class="num">${time(one.begin_us)}</span><span class="row-sub num">until ${time(one.end_us)}</span>` },
    { title: "State", cell: (/** @type {any} */ one) => html`${one.state ? html`<${State} state=${one.state} />` : "due"}${one.reason && html`<span class="row-sub clip" title=${one.reason}>${one.reason}</span>`}` },
  ];
  return html`<header class="job-head"><div class="job-title"><h1>${summary.name}</h1><${State} state=${summary.state} /></div>
      <p class="job-times"><span>${summary.pipeline}</span><code>${summary.cron}</code><span>${summary.timezone}</span></p>
      <div class="actions"><${Allowed} role="operate"><button class="button" onClick=${() => setAsking(verb)}><${Icon} name=${verb === "pause" ? "pause" : "play"} />${verb === "pause" ? "Pause" : "Resume"}</button><//></div></header>
    ${asking && html`<${Confirm} title=${`${asking === "pause" ? "Pause" : "Resume"} ${summary.name}?`} action=${asking === "pause" ? "Pause" : "Resume"} onClose=${() => setAsking("")} act=${async () => { await post(`${url}/${asking}`); reload(); }}>
      <p>${asking === "pause" ? "No further run begins. What is at work goes on." : "Runs begin again; periods that have passed meanwhile are caught up, oldest first."}</p><//>`}
    ${summary.state === "STOPPED" && html`<${Note} tone="bad" title="It has stopped.">${summary.reason} Resume it to try that period again.<//>`}
    <${NoService} service=${detail.service} />
    <${Facts} label="The schedule in short">
      <${Fact} label="Next" value=${summary.next ? time(summary.next.end_us) : "none"} note=${summary.next_state?.toLowerCase()} />
      <${Fact} label="Behind" value=${plural(summary.behind, "period")} tone=${summary.behind > 1 ? "warn" : ""} />
      <${Fact} label="Repeats a failed run" value=${plural(detail.retries, "time")} note=${`after ${duration(detail.retry_pause_ms * 1000)}`} />
      <${Fact} label="When a run has failed" value=${detail.on_failure === "stop" ? "stops" : "goes on"} />
    <//>
    ${detail.due.length > 0 && html`<${Card} flush title="To come" id="due-title"><${Table} label="Runs to come" columns=${runs} rows=${detail.due} keyOf=${(/** @type {any} */ one) => one.run} /><//>`}
    <${Card} flush title="Done" id="ended-title">${detail.ended.length ? html`<${Table} label="Periods that are done" columns=${runs} rows=${detail.ended} keyOf=${(/** @type {any} */ one) => one.run} />` : html`<${Empty} title="No period is done yet" icon="clock" />`}<//>
    <${Card} title="Parameters and options" id="options-title"><${Pairs} pairs=${[...Object.entries(detail.parameters), ...flat(detail.options)]} /><//>`;
}
