/** Ways to submit a job: what to type, and a file that `penstock submit --write` has made. */
import { html, useEffect, useState } from "../vendor/preact.js";
import { get, postForm } from "../core/api.js";
import { bytes, plural } from "../core/format.js";
import { go, href } from "../core/router.js";
import { readSubmission } from "../core/submission.js";
import { Note } from "../parts/bits.js";
import { Confirm } from "../parts/dialog.js";
import { Icon } from "../parts/icons.js";

const LOOK_MS = 700;

/** @param {{onClose: () => void}} props */
export function SubmitDialog({ onClose }) {
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const [savepoints, setSavepoints] = useState(/** @type {any[]} */ ([]));
  const [from, setFrom] = useState("");
  useEffect(() => {
    get("/penstock/v1/savepoints").then((list) => setSavepoints(list.savepoints.toReversed()), () => {});
  }, []);
  const choose = async (/** @type {File | undefined} */ file) => {
    if (!file) return;
    try {
      setFound({ file, ...(await readSubmission(file)) });
      setProblem("");
    } catch (error) {
      setFound(null);
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  const act = async () => {
    const one = savepoints.find((savepoint) => savepoint.manifest === from);
    const restored_from = one ? { checkpoint: one.checkpoint, manifest: one.manifest, sha256: one.sha256 } : found.job.restored_from;
    const form = new FormData();
    form.append("job", new Blob([JSON.stringify({ ...found.job, job: "", restored_from })], { type: "application/json" }));
    form.append("sources", found.sources);
    const { job } = await postForm("/penstock/v1/jobs", form);
    await accepted(job);
    go(href("jobs", job));
  };
  return html`<${Confirm} wide title="Submit a job" action="Submit" busy="Waiting for the leader …" ready=${!!found} onClose=${onClose} act=${act}>
    <p>A pipeline is Python, so its graph is made where its code and requirements are: by the command line, which submits it as well.</p>
    <pre class="code">penstock submit orders.py --param out=orders</pre>
    <p>Or let it write a file, and submit that from here: <code>penstock submit orders.py --write orders.penstock</code></p>
    <label class="drop" onDragOver=${(/** @type {Event} */ event) => event.preventDefault()} onDrop=${(/** @type {DragEvent} */ event) => { event.preventDefault(); choose(event.dataTransfer?.files[0]); }}>
      <${Icon} name="upload" /><span>${found ? html`<strong>${found.job.name}</strong> from <code>${found.file.name}</code>, ${bytes(found.file.size)}` : "Choose a submission file, or drop it here"}</span>
      <input type="file" accept=".penstock" class="sr" onChange=${(/** @type {any} */ event) => choose(event.target.files[0])} /></label>
    ${problem && html`<${Note} tone="bad" title="This file cannot be submitted.">${problem}<//>`}
    ${found && html`<p class="faint">Parallelism ${found.job.graph.parallelism}, ${plural(found.job.graph.vertices.length, "vertex", "vertices")}. Submitting it runs its code on the task managers.</p>
      <div><label for="from">Start from</label><select id="from" value=${from} onChange=${(/** @type {any} */ event) => setFrom(event.target.value)}>
        <option value="">${found.job.restored_from ? `checkpoint ${found.job.restored_from.checkpoint}, as the file says` : "nothing: a fresh start"}</option>
        ${savepoints.map((one) => html`<option key=${one.manifest} value=${one.manifest}>${one.name}: ${one.kind} ${one.checkpoint}</option>`)}</select></div>`}
  <//>`;
}

/** Wait until a leader has looked at it; throws why it was refused. @param {string} job */
async function accepted(job) {
  for (let looks = 0; looks < 40; looks++) {
    const state = await get(`/penstock/v1/jobs/${job}/requests/${job}`);
    if (state.state === "refused") throw new Error(state.reason);
    if (state.state === "completed") return;
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
  throw new Error("No leader has looked at it yet. It is kept, and begins when one does.");
}
