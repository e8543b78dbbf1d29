import { html } from "../vendor/preact.js";
export const RunPage = () => html`<p>…</p>`;
