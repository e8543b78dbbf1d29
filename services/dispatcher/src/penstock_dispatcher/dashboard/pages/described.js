/** What a job was made from, how it is set up, and what the cluster decided about it. */
import { html } from "../vendor/preact.js";
import { download } from "../core/api.js";
import { duration, plural, time } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { Card, Empty, Ready } from "../parts/bits.js";
import { Table } from "../parts/table.js";

const NEVER_MS = 3_600_000;

/** @param {any} props */
export function SourceTab({ url, detail }) {
  const polled = usePolled(`${url}/source`, NEVER_MS);
  const save = async () => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(await download(`${url}/artifact`)), download: `${detail.summary.name}.zip` });
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return html`<${Ready} polled=${polled} what="the source">${(/** @type {any} */ source) => html`
    <${Card} flush title=${source.target} id="source-title" actions=${html`<button class="button small" onClick=${save}>Download all (${plural(source.files.length, "file")})</button>`}>
      <${Code} text=${source.text} />
      ${!source.whole && html`<p class="pad faint">This is its beginning; download it to see the rest.</p>`}<//>
    ${source.files.length > 1 && html`<${Card} title="Files that came with it" id="files-title"><ul class="plain mono">${source.files.map((/** @type {string} */ file) => html`<li key=${file}>${file}</li>`)}</ul><//>`}`}<//>`;
}

/** Text with numbers of lines. @param {{text: string}} props */
export const Code = ({ text }) => html`<pre class="code numbered" tabindex="0" aria-label="Source">${text.replace(/\n$/, "").split("\n").map((line, i) => html`<span class="line" key=${i}>${line}</span>`)}</pre>`;

/** @param {any} props */
export function ConfigurationTab({ url, detail }) {
  const polled = usePolled(`${url}/log`, 10_000);
  return html`<${Ready} polled=${polled} what="the configuration">${(/** @type {any} */ log) => {
    const submit = log.records[0] ?? {};
    const { settings = {}, artifact } = submit;
    return html`
      <${Card} title="Settings" id="settings-title"><${Pairs} pairs=${flat(settings)} /><//>
      <${Card} title="Submission" id="submission-title"><${Pairs} pairs=${[["name", submit.name], ["job", submit.job], ["max parallelism", detail.graph.max_parallelism],
        ["target", artifact?.target], ["requirements", artifact?.requirements?.join(", ")], ["restored from", submit.restored_from?.manifest]]} />
        ${Object.keys(artifact?.parameters ?? {}).length > 0 && html`<h3>Parameters</h3><${Pairs} pairs=${Object.entries(artifact.parameters)} /><p class="faint">Their values are not shown: they may be secrets.</p>`}<//>
      ${(detail.graph.vertices ?? []).map((/** @type {any} */ vertex) => html`<${Card} key=${vertex.id} title=${vertex.name.replaceAll(" -> ", " → ")} id=${`config-${vertex.id}`}>
        ${vertex.operators.map((/** @type {any} */ operator) => html`<h3 key=${operator.id}>${operator.verb} <code class="faint">${operator.id}</code></h3>
          <${Pairs} pairs=${[...flat(operator.settings), ["guarantee", operator.guarantee], ["schema", operator.schema.map((/** @type {any} */ column) => `${column.name}: ${typeof column.type === "string" ? column.type : JSON.stringify(column.type)}`).join(", ")]]} />`)}<//>`)}`;
  }}<//>`;
}

/** @param {any} value @param {string} [under] @returns {[string, any][]} */
export function flat(value, under = "") {
  return Object.entries(value ?? {}).flatMap(([key, inner]) =>
    inner !== null && typeof inner === "object" && !Array.isArray(inner) ? flat(inner, `${under}${key}.`) : [/** @type {[string, any]} */ ([under + key, inner])]);
}

/** @param {{pairs: [string, any][]}} props */
export function Pairs({ pairs }) {
  const said = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  if (!said.length) return html`<p class="faint">Nothing but the defaults.</p>`;
  return html`<dl class="pairs">${said.map(([key, value]) => html`<div key=${key}><dt>${key.replace(/_ms$/, "").replaceAll("_", " ").replaceAll(".", " › ")}</dt><dd class="mono">${text(key, value)}</dd></div>`)}</dl>`;
}

/** @param {string} key @param {any} value */
function text(key, value) {
  if (typeof value === "number" && key.endsWith("_ms")) return duration(value * 1000);
  return typeof value === "string" ? value : JSON.stringify(value);
}

/** @param {any} props */
export function HistoryTab({ url }) {
  const polled = usePolled(`${url}/log`, 4_000);
  return html`<${Ready} polled=${polled} what="the job's log">${(/** @type {any} */ log) => {
    const rows = log.records.toReversed();
    return html`<${Card} flush title="What the cluster decided" id="log-title" actions=${html`<span>the job's log, newest first</span>`}>
      ${rows.length ? html`<${Table} label="Records" columns=${RECORD} rows=${rows} keyOf=${(/** @type {any} */ record) => String(record.seq)} />` : html`<${Empty} title="The log is empty" />`}<//>`;
  }}<//>`;
}

const RECORD = [
  { title: "No.", end: true, cell: (/** @type {any} */ record) => html`<span class="num faint">${record.seq}</span>` },
  { title: "When", cell: (/** @type {any} */ record) => html`<span class="num">${time(record.at_us)}</span>` },
  { title: "What", cell: (/** @type {any} */ record) => html`<span class="strong">${record.type}</span>` },
  { title: "Details", hide: "phone", cell: (/** @type {any} */ record) => html`<span class="faint clamp mono" title=${said(record)}>${said(record)}</span>` },
];

const APART = new Set(["type", "seq", "nonce", "at_us", "settings", "artifact", "start_offsets", "sha256", "checkpoint_nonce"]);

/** @param {any} record */
const said = (record) => Object.entries(record).filter(([key, value]) => !APART.has(key) && value !== "" && value !== null).map(([key, value]) => `${key}=${typeof value === "object" ? JSON.stringify(value) : value}`).join("  ");

