import { html } from "../vendor/preact.js";
export const RunsPage = () => html`<p>…</p>`;
