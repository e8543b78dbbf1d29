/** One run on Spark. */
import { html, useState } from "../vendor/preact.js";
import { post } from "../core/api.js";
import { compact, count, duration, plural, since, time } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { href } from "../core/router.js";
import { Card, Copy, Empty, Fact, Facts, Note, Ready, State } from "../parts/bits.js";
import { Allowed } from "../parts/allowed.js";
import { Confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";
import { Table } from "../parts/table.js";
import { flat, Pairs } from "./described.js";
import { JobGraph } from "./graph.js";
import { loadsOf } from "../core/loads.js";
import { Progress } from "./runs.js";

/** @param {{run: string}} props */
export function RunPage({ run }) {
  const url = `/penstock/v1/runs/${encodeURIComponent(run)}`;
  const polled = usePolled(url);
  return html`<nav class="crumbs" aria-label="Where this is"><a href=${href("runs")}>Runs on Spark</a> / ${polled.data?.summary.name ?? run}</nav>
    <${Ready} polled=${polled} what="this run">${(/** @type {any} */ detail) => html`<${Run} detail=${detail} url=${url} reload=${polled.reload} />`}<//>`;
}

/** @param {any} props */
function Run({ detail, url, reload }) {
  const { summary } = detail;
  const [cancelling, setCancelling] = useState(false);
  const log = usePolled(`${url}/log`, 3_000);
  const going = summary.ended_us === null;
  return html`
    <header class="job-head"><div class="job-title"><h1>${summary.name}</h1><${State} state=${summary.state} /></div>
      <p class="job-times"><span class="mono">${summary.run}</span><${Copy} text=${summary.run} label="the run's id" /><span>submitted ${time(summary.submitted_us)}</span>
        <span>${plural(summary.attempts, "attempt")}</span></p>
      ${going && html`<div class="actions"><${Allowed} role="operate"><button class="button" data-tone="bad" disabled=${summary.cancel_asked} onClick=${() => setCancelling(true)}><${Icon} name="cross" />${summary.cancel_asked ? "Cancel asked for" : "Cancel"}</button><//></div>`}</header>
    ${cancelling && html`<${Confirm} title=${`Cancel ${summary.name}?`} action="Cancel the run" tone="bad" onClose=${() => setCancelling(false)} act=${async () => { await post(`${url}/cancel`); reload(); }}>
      <p>What it has computed is thrown away, unless it is committing already.</p><//>`}
    ${summary.state === "FAILED" && html`<${Note} tone="bad" title="This run has failed.">${summary.reason}<//>`}
    ${detail.frames && html`<${Card} title="In your code" id="frames-title"><pre class="code">${detail.frames}</pre><//>`}
    <${Facts} label="The run in short">
      <${Fact} label="Time" value=${summary.began_us ? (going ? since(summary.began_us) : duration(summary.ended_us - summary.began_us)) : "–"} note=${summary.position ? `${summary.position}. in the queue` : ""} />
      <${Fact} label="Stages" value=${summary.progress ? `${summary.progress.stages_done} of ${summary.progress.stages}` : "–"} note=${summary.progress?.at} />
      <${Fact} label="Tasks" value=${summary.progress ? `${summary.progress.tasks_done} of ${summary.progress.tasks}` : "–"} note=${summary.progress ? "of the stages at work" : ""} />
      <${Fact} label="Rows" value=${compact(summary.progress?.rows)} note=${summary.progress ? "handed on by all stages" : ""} />
      <${Fact} label="Parallelism" value=${summary.parallelism || "–"} note=${summary.parallelism ? "" : "as Spark has"} />
    <//>
    ${summary.progress && html`<${Card} title="Now" id="now-title" actions=${summary.progress.ui && html`<a class="button small" href=${summary.progress.ui} rel="noreferrer" target="_blank">Spark's own page</a>`}><${Progress} progress=${summary.progress} /><//>`}
    ${detail.graph.vertices && html`<${Card} flush title="Graph" id="graph-title"><${JobGraph} loads=${loadsOf({ ...detail, vertices: [] })} job=${summary.run} selected="" still /><//>`}
    <${Counts} counts=${detail.counts} />
    <${Card} title="Options" id="options-title"><${Pairs} pairs=${flat(detail.options)} /><//>
    <${Card} flush title="Output" id="output-title">${log.data?.output ? html`<pre class="code log" tabindex="0" role="log" aria-live="off">${log.data.output}</pre>` : html`<${Empty} title="Nothing yet" icon="info">The last lines that an attempt printed are shown when it has ended.<//>`}<//>`;
}

/** @param {{counts: Record<string, Record<string, number>>}} props */
function Counts({ counts }) {
  const rows = Object.entries(counts).map(([operator, found]) => ({ operator, ...found }));
  if (!rows.length) return null;
  const number = (/** @type {string} */ title, /** @type {string} */ name) => ({ title, end: true, cell: (/** @type {any} */ row) => html`<span class="num">${count(row[name] ?? 0)}</span>` });
  const columns = [{ title: "Operator", cell: (/** @type {any} */ row) => html`<code>${row.operator}</code>` }, number("Rows in", "rows_in"), number("Rows out", "rows_out"), number("Late", "late_rows"), number("Bad", "bad_rows")];
  return html`<${Card} flush title="Counted" id="counts-title"><${Table} label="Counts" columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ row) => row.operator} /><//>`;
}
