/** What made attempts fail, with the lines of the user's own code. */
import { html } from "../vendor/preact.js";
import { ago, time } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { Card, Copy, Empty, Ready } from "../parts/bits.js";

/** @param {any} props */
export function ExceptionsTab({ url, detail }) {
  const polled = usePolled(`${url}/failures`, 4_000);
  return html`<${Ready} polled=${polled} what="the exceptions">${(/** @type {any} */ found) => {
    const attempts = found.attempts.toReversed();
    if (!attempts.length && !found.reason && !found.failures.length)
      return html`<${Card}><${Empty} title="Nothing has gone wrong" icon="check">No attempt of this job has failed, as far as its log goes back.<//><//>`;
    const told = new Set(attempts.map((/** @type {any} */ one) => one.reason));
    const others = found.failures.filter((/** @type {string} */ text) => !told.has(text));
    const why = told.has(found.reason) ? "" : found.reason;
    return html`
      ${why && html`<${Card} title="Why the job failed" id="reason-title"><p class="reason">${why}</p><//>`}
      ${others.length > 0 && html`<${Card} title="What its leader says" id="others-title"><ul class="plain">${others.map((/** @type {string} */ text) => html`<li key=${text}>${text}</li>`)}</ul><//>`}
      ${attempts.map((/** @type {any} */ one) => html`<${Failure} key=${one.attempt_number} failure=${one} graph=${detail.graph} />`)}`;
  }}<//>`;
}

/** @param {any} props */
function Failure({ failure, graph }) {
  const id = `attempt-${failure.attempt_number}`;
  const vertex = (graph.vertices ?? []).find((/** @type {any} */ one) => failure.subtask.startsWith(`${one.id}[`));
  return html`<${Card} title=${`Attempt ${failure.attempt_number}`} id=${id} actions=${html`<span class="num">${time(failure.at_us)}</span><span>${ago(failure.at_us)}</span>`}>
    <p class="reason">${failure.reason}</p>
    <p class="faint">${failure.subtask && html`in <code>${failure.subtask}</code>${vertex && ` (${vertex.name.replaceAll(" -> ", " → ")})`} `}${failure.worker && html`on <code>${failure.worker}</code>`}</p>
    ${failure.frames ? html`<div class="code-frame"><pre class="code">${failure.frames}</pre><${Copy} text=${`${failure.frames}\n${failure.reason}`} label="the traceback" /></div>`
      : html`<p class="faint">None of your code's lines are in it: it happened outside of it.</p>`}<//>`;
}
