/** What can be asked of a job: savepoint, rescale, stop, cancel. Each is confirmed, then followed to its outcome. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, post } from "../core/api.js";
import { plural } from "../core/format.js";
import { Note } from "../parts/bits.js";
import { Allowed, takesJobs } from "../parts/allowed.js";
import { Confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";

const LOOK_MS = 700;

/** @typedef {{kind: string, request: string, state: string, reason: string, savepoint: any}} Asked */

/** @param {{summary: any, url: string, ended: boolean, done: () => void}} props */
export function Actions({ summary, url, ended, done }) {
  const [open, setOpen] = useState("");
  const [asked, setAsked] = useState(/** @type {Asked | null} */ (null));
  const ask = async (/** @type {string} */ kind, /** @type {string} */ path, /** @type {any} */ body = {}) => {
    // The id is ours, so that what is sent twice is carried out once.
    const request = randomId();
    const answer = await post(`${url}/${path}`, { ...body, request });
    setAsked({ kind, request: answer.request, state: "pending", reason: "", savepoint: null });
  };
  useOutcome(url, asked, setAsked, done);
  const props = { summary, ask, onClose: () => setOpen("") };
  return html`
    ${!ended && html`<div class="actions" role="group" aria-label="Ask something of this job"><${Allowed} role="operate">
      <button class="button" onClick=${() => setOpen("savepoint")}><${Icon} name="save" />Savepoint</button>
      <${Allowed} deed="rescale"><button class="button" onClick=${() => setOpen("rescale")}><${Icon} name="scale" />Rescale</button><//>
      <button class="button" onClick=${() => setOpen("stop")}><${Icon} name="stop" />Stop</button>
      <button class="button" data-tone="bad" onClick=${() => setOpen("cancel")}><${Icon} name="cross" />Cancel</button>
    <//></div>`}
    ${open === "savepoint" && html`<${SavepointDialog} ...${props} />`}
    ${open === "rescale" && html`<${RescaleDialog} ...${props} />`}
    ${open === "stop" && html`<${StopDialog} ...${props} />`}
    ${open === "cancel" && html`<${CancelDialog} ...${props} />`}
    ${asked && html`<div class="outcome"><${Outcome} asked=${asked} close=${() => setAsked(null)} /></div>`}`;
}

/** Asks what became of a request until that is known. @param {string} url @param {Asked | null} asked @param {(asked: Asked) => void} setAsked @param {() => void} done */
function useOutcome(url, asked, setAsked, done) {
  const pending = asked?.state === "pending" ? asked.request : null;
  const newest = useRef(asked);
  newest.current = asked;
  useEffect(() => {
    if (!pending) return undefined;
    let timer = 0;
    const look = async () => {
      try {
        const state = await get(`${url}/requests/${pending}`);
        if (state.state !== "pending" && newest.current?.request === pending) {
          setAsked({ ...newest.current, ...state });
          done();
          return;
        }
      } catch {
        // it is known again as soon as the dispatcher answers
      }
      timer = setTimeout(look, LOOK_MS);
    };
    timer = setTimeout(look, LOOK_MS / 3);
    return () => clearTimeout(timer);
  }, [url, pending]);
}

/** @param {{asked: Asked, close: () => void}} props */
function Outcome({ asked, close }) {
  const button = html`<button class="icon-button" onClick=${close} aria-label="Dismiss"><${Icon} name="cross" /></button>`;
  if (asked.state === "pending") return html`<${Note} title=${`${asked.kind}: asked for.`}>The leader has not answered yet.<//>`;
  if (asked.state === "refused") return html`<${Note} tone="bad" title=${`${asked.kind}: refused.`} actions=${button}>${asked.reason}<//>`;
  return html`<${Note} tone="good" title=${`${asked.kind}: done.`} actions=${button}>
    ${asked.savepoint && html`Savepoint of checkpoint ${asked.savepoint.checkpoint}: <code>${asked.savepoint.manifest}</code>`}<//>`;
}

/** @param {any} props */
const SavepointDialog = ({ summary, ask, onClose }) => html`<${Confirm} title=${`Take a savepoint of ${summary.name}?`} action="Take a savepoint" onClose=${onClose}
    act=${() => ask("Savepoint", "savepoints")}>
  <p>The job goes on. The savepoint is kept until you dispose of it; other jobs can start from it.</p><//>`;

/** @param {any} props */
function StopDialog({ summary, ask, onClose }) {
  const [drain, setDrain] = useState(false);
  return html`<${Confirm} title=${`Stop ${summary.name}?`} action="Stop with a savepoint" onClose=${onClose} act=${() => ask("Stop", "stop", { drain })}>
    <p>It takes a savepoint, publishes all that is complete, and ends. ${takesJobs() ? html`Start it again from the savepoint: <code>penstock submit … --from-savepoint ${summary.name}</code>` : html`Go on from the savepoint: <code>penstock run … --resume</code>`}</p>
    <label class="check"><input type="checkbox" checked=${drain} onChange=${(/** @type {any} */ event) => setDrain(event.target.checked)} />
      <span>Drain: let all windows and timers fire before. Only for a job that will not go on.</span></label><//>`;
}

/** @param {any} props */
function CancelDialog({ summary, ask, onClose }) {
  const [typed, setTyped] = useState("");
  return html`<${Confirm} title=${`Cancel ${summary.name}?`} action="Cancel the job" tone="bad" ready=${typed.trim() === summary.name} onClose=${onClose} act=${() => ask("Cancel", "cancel")}>
    <p>It publishes what is complete and ends <strong>without a savepoint</strong>: ${takesJobs() ? `it can go on from its last checkpoint (${summary.last_checkpoint || "there is none"}) only.` : "it cannot go on. Ctrl-C in its terminal suspends it instead."}</p>
    <label for="confirm-name">Type <code>${summary.name}</code> to confirm</label>
    <input id="confirm-name" autocomplete="off" spellcheck="false" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /><//>`;
}

/** @param {any} props */
function RescaleDialog({ summary, ask, onClose }) {
  const [text, setText] = useState(String(summary.parallelism));
  const [wait, setWait] = useState(false);
  const wanted = Number(text);
  const ready = Number.isInteger(wanted) && wanted > 0 && wanted !== summary.parallelism;
  return html`<${Confirm} title=${`Rescale ${summary.name}?`} action=${ready ? `Go on at ${plural(wanted, "subtask")}` : "Rescale"} ready=${ready} onClose=${onClose}
      act=${() => ask("Rescale", "rescale", { parallelism: wanted, wait })}>
    <p>It stops reading for a moment, takes a checkpoint, and goes on with its state spread over the new number of subtasks. It runs at ${summary.parallelism} now.</p>
    <label for="parallelism">New parallelism</label>
    <input id="parallelism" type="number" min="1" step="1" inputmode="numeric" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
    <label class="check"><input type="checkbox" checked=${wait} onChange=${(/** @type {any} */ event) => setWait(event.target.checked)} />
      <span>Wait for slots: go on as it is until there are enough. Else it is refused while there are not.</span></label><//>`;
}

/** 32 hex digits. */
const randomId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
