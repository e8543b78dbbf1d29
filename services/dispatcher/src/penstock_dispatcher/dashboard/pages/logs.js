/** What workers log, as it comes. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { count } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { Card, Empty, Note, Ready } from "../parts/bits.js";
import { Icon } from "../parts/icons.js";

const LINES = 500;

/** @param {any} props */
export function LogsTab({ url, ended }) {
  const polled = usePolled(`${url}/workers/logs?lines=${LINES}`, ended ? 15_000 : 2_000);
  return html`<${Ready} polled=${polled} what="the logs">${(/** @type {any} */ found) => html`<${Logs} found=${found} />`}<//>`;
}

/** @param {{found: any}} props */
export function Logs({ found }) {
  const [worker, setWorker] = useState("");
  const [text, setText] = useState("");
  const [follow, setFollow] = useState(true);
  const shown = found.workers.find((/** @type {any} */ one) => one.worker === worker) ?? found.workers[0];
  const missing = found.missing.length > 0 && html`<${Note} tone="warn" title="Not all logs are here.">${found.missing.join("; ")}<//>`;
  if (!shown) return html`${missing}<${Card}><${Empty} title="No worker of this job has logged anything" icon="info">Task managers keep the last 500 lines of each worker, while they run.<//><//>`;
  return html`${missing}<${Card} flush>
    <div class="filters">
      <label class="inline">Worker <select value=${shown.worker} onChange=${(/** @type {any} */ event) => setWorker(event.target.value)}>
        ${found.workers.map((/** @type {any} */ one) => html`<option key=${one.worker} value=${one.worker}>${one.worker}${one.ended ? " (ended)" : ""}</option>`)}</select></label>
      <label class="search"><span class="sr">Show only lines with</span><${Icon} name="search" /><input type="search" placeholder="Only lines with …" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} /></label>
      <label class="check inline"><input type="checkbox" checked=${follow} onChange=${(/** @type {any} */ event) => setFollow(event.target.checked)} />Follow</label>
    </div>
    <${Lines} lines=${shown.lines} text=${text} follow=${follow} setFollow=${setFollow} /><//>`;
}

/** @param {any} props */
function Lines({ lines, text, follow, setFollow }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const found = useMemo(() => lines.filter((/** @type {string} */ line) => line.toLowerCase().includes(text.toLowerCase())), [lines, text]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [found, follow]);
  const scrolled = (/** @type {any} */ { currentTarget: at }) => setFollow(at.scrollHeight - at.scrollTop - at.clientHeight < 30);
  return html`<pre class="code log" ref=${box} onScroll=${scrolled} tabindex="0" role="log" aria-live="off" aria-label="Log lines">${
    found.length ? found.map((/** @type {string} */ line, /** @type {number} */ i) => html`<span class="line" key=${i} data-level=${levelOf(line)}>${line}</span>`) : html`<span class="line">No line matches.</span>`}</pre>
    <p class="pad faint num">${count(found.length)} of ${count(lines.length)} lines</p>`;
}

/** @param {string} line */
function levelOf(line) {
  const said = /\[(\w+)\s*\]|"level": ?"(\w+)"/.exec(line);
  const level = said?.[1] ?? said?.[2] ?? "";
  if (["error", "critical", "exception"].includes(level) || line.startsWith("Traceback")) return "bad";
  return level === "warning" ? "warn" : "";
}
