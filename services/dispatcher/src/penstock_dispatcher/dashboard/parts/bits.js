/** The small parts that all pages are made of. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { percent } from "../core/format.js";
import { Icon } from "./icons.js";

/** State to how it is shown: a tone of colour and, for those who do not see it, a form. */
const STATES = {
  RUNNING: ["good", "play"], FINISHED: ["done", "check"], STOPPED: ["done", "stop"], CANCELED: ["quiet", "cross"],
  FAILED: ["bad", "alert"], RESTARTING: ["warn", "restart"], FAILING: ["warn", "alert"], CREATED: ["wait", "clock"], SUSPENDED: ["wait", "pause"],
  UNOPENED: ["bad", "alert"], QUEUED: ["wait", "clock"], ACTIVE: ["good", "play"], PAUSED: ["wait", "pause"],
  REMOVED: ["quiet", "cross"], complete: ["done", "check"], aborted: ["bad", "alert"], "in progress": ["wait", "clock"],
  running: ["good", "play"], ended: ["good", "check"], finished: ["done", "check"], failed: ["bad", "alert"],
  initializing: ["wait", "clock"], deployed: ["wait", "clock"], canceled: ["quiet", "cross"],
};

/** The state of a job; one that runs only until it fails again is not well. @param {any} summary @returns {string} */
export const shownState = (summary) => (summary.state === "RUNNING" && summary.failures > 0 ? "FAILING" : summary.state);

/** @param {{state: string, label?: string}} props */
export function State({ state, label }) {
  const [tone, icon] = STATES[state] ?? ["quiet", "clock"];
  const text = label ?? state.charAt(0).toUpperCase() + state.slice(1).toLowerCase();
  return html`<span class="state" data-tone=${tone}><${Icon} name=${icon} />${text}</span>`;
}

/** How time is spent. Of several subtasks both are those of the one that has most, so they do not sum up.
 * @param {{busy?: number, blocked?: number, known?: boolean, several?: boolean}} props */
export function Load({ busy = 0, blocked = 0, known = true, several = false }) {
  if (!known) return html`<span class="faint">–</span>`;
  const of = several ? " (the subtask with most)" : "";
  return html`<span class="load" title=${`${percent(busy)} busy${of}, ${percent(blocked)} backpressured${of}`}>
    <span class="load-bar" aria-hidden="true">
      <span class="load-busy" style=${{ width: percent(busy) }}></span>
      ${!several && html`<span class="load-blocked" style=${{ width: percent(blocked) }}></span>`}
    </span>
    <span class="num">${percent(busy)}</span>
    <span class="sr">busy, ${percent(blocked)} backpressured</span>
    ${blocked >= 0.1 && html`<span class="tag" data-tone=${pressure(blocked)} aria-hidden="true">${percent(blocked)} backpressured</span>`}
  </span>`;
}

/** As Flink draws the line: up to a tenth is none, up to a half is low. @param {number} blocked */
export const pressure = (blocked) => (blocked >= 0.5 ? "bad" : blocked >= 0.1 ? "warn" : "good");

/** A number that somebody looks at first. @param {any} props */
export function Fact({ label, value, note, tone, trace }) {
  return html`<div class="fact" data-tone=${tone}>
    <dt>${label}</dt>
    <dd><span class="fact-value num">${value}</span>${note && html`<span class="fact-note">${note}</span>`}
      ${trace && trace.length > 2 && html`<${Sparkline} values=${trace} label=${label} />`}</dd>
  </div>`;
}

/** @param {any} props */
export const Facts = ({ children, label }) => html`<dl class="facts" aria-label=${label}>${children}</dl>`;

/** What a number was since the page is open. @param {{values: number[], label: string}} props */
function Sparkline({ values }) {
  const top = Math.max(...values, 1e-9);
  const points = values.map((value, i) => `${((i / (values.length - 1)) * 100).toFixed(1)},${(23 - (value / top) * 20).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">
    <polygon points=${`0,24 ${points.join(" ")} 100,24`} /><polyline points=${points.join(" ")} />
  </svg>`;
}

const TRACED = 90;

/** The values that something has had since the page is open. @param {string} key @param {number | null | undefined} value
 * @param {number} at @returns {number[]} */
export function useTrace(key, value, at) {
  const kept = useRef({ key, at: 0, values: /** @type {number[]} */ ([]) });
  if (kept.current.key !== key) kept.current = { key, at: 0, values: [] };
  if (typeof value === "number" && at !== kept.current.at) {
    kept.current.values = [...kept.current.values, value].slice(-TRACED);
    kept.current.at = at;
  }
  return kept.current.values;
}

/** A link to a page of the documentation, which the dispatcher serves. @param {{page: string, children: any}} props */
export const Documented = ({ page, children }) => html`
  <a class="documented" href=${`/documentation/${page}`} target="_blank" rel="noopener"><${Icon} name="book" />${children}</a>`;

/** Of links that scroll sideways: the one of this page is in sight. @param {string} current @returns {{current: HTMLElement | null}} */
export function useSeen(current) {
  const links = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    const [frame, link] = [links.current?.getBoundingClientRect(), links.current?.querySelector("[aria-current]")?.getBoundingClientRect()];
    if (frame && link) links.current?.scrollBy({ left: link.left + link.width / 2 - frame.left - frame.width / 2 });
  }, [current]);
  return links;
}

let reasons = 0; // why what the page shows is not current

/** What is shown was so once: as long as somebody says so the page is grey. @param {boolean} stale */
export function useStale(stale) {
  useEffect(() => {
    if (!stale) return undefined;
    const change = (/** @type {number} */ by) => document.getElementById("main")?.toggleAttribute("data-stale", (reasons += by) > 0);
    change(1);
    return () => void change(-1);
  }, [stale]);
}

/** @param {any} props */
export const Card = ({ title, actions, children, flush, id }) => html`
  <section class=${`card${flush ? " flush" : ""}`} aria-labelledby=${id}>
    ${title && html`<header class="card-head"><h2 id=${id}>${title}</h2>${actions && html`<div class="card-actions">${actions}</div>`}</header>`}
    ${children}
  </section>`;

/** Nothing here, and what to do about it. @param {any} props */
export const Empty = ({ title, children, icon = "drop" }) => html`
  <div class="empty"><${Icon} name=${icon} /><p class="empty-title">${title}</p><div class="empty-text">${children}</div></div>`;

/** @param {any} props */
export const Note = ({ tone = "wait", title, children, actions }) => html`
  <div class="note" data-tone=${tone} role=${tone === "bad" ? "alert" : "status"}>
    <${Icon} name=${tone === "bad" || tone === "warn" ? "alert" : "info"} />
    <div class="note-text">${title && html`<strong>${title}</strong>`}<div>${children}</div></div>
    ${actions}
  </div>`;

/** Something is asked for: bones of it, until it is there. @param {{lines?: number}} props */
export const Loading = ({ lines = 4 }) => html`
  <div class="loading" aria-busy="true"><span class="sr">Loading</span>
    ${Array.from({ length: lines }, (_, i) => html`<span class="bone" key=${i}></span>`)}</div>`;

/** What cannot be shown and why; or, of what was there before, that it is old. @param {{polled: import("../core/poll.js").Polled, what: string}} props */
export function Trouble({ polled, what }) {
  const { error, data, reload } = polled;
  if (!error || error.status === 401) return null;
  const retry = html`<button class="button small" onClick=${reload}>Try again</button>`;
  if (data !== undefined)
    return html`<${Note} tone="warn" title="This is not current." actions=${retry}>${error.message} It is asked for again by itself.<//>`;
  const [title, advice] = adviceOn(error.status, what);
  return html`<${Note} tone="bad" title=${title} actions=${retry}>${error.message} ${advice}<//>`;
}

/** @param {number} status @param {string} what */
function adviceOn(status, what) {
  if (status === 0) return [`Cannot load ${what}`, "Look whether a dispatcher runs at this address; the page goes on by itself once one does."];
  if (status === 404) return [`There is no such ${what.replace(/^(the|this) /, "")}`, ""];
  if (status === 503) return [`${what.charAt(0).toUpperCase()}${what.slice(1)} cannot be shown now`, "The page asks again by itself."];
  return [`Cannot load ${what}`, ""];
}

/** The page's loading, failing or content, whichever it is. @param {any} props */
export function Ready({ polled, what, lines, children }) {
  useStale(!!polled.error && polled.error.status !== 401 && polled.data !== undefined);
  return html`<${Trouble} polled=${polled} what=${what} />
    ${polled.data === undefined ? !polled.error && html`<${Loading} lines=${lines} />` : children(polled.data)}`;
}

/** @param {{text: string, label: string}} props */
export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button class="icon-button" type="button" onClick=${copy} aria-label=${`Copy ${label}`} title=${`Copy ${label}`}>
    <${Icon} name=${done ? "check" : "copy"} /></button>`;
}

/** Renders again every second: for what counts up. */
export function useNow() {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => !document.hidden && setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}
