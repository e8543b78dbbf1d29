import { html } from "../vendor/preact.js";
export const ClusterPage = () => html`<p>…</p>`;
