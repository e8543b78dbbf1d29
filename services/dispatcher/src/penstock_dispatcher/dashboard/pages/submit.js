import { html } from "../vendor/preact.js";
export const SubmitDialog = () => html`<p>…</p>`;
