import { html } from "../vendor/preact.js";
export const SchedulePage = () => html`<p>…</p>`;
export const SchedulesPage = SchedulePage;
