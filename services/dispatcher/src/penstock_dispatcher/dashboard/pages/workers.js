import { html } from "../vendor/preact.js";
export const WorkersPage = () => html`<p>…</p>`;
