import { html } from "../vendor/preact.js";
export const JobPage = () => html`<p>…</p>`;
