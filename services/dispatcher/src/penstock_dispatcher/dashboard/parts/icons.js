/** Icons, drawn with lines on a field of 16 by 16. */
import { html } from "../vendor/preact.js";

const PATHS = {
  play: "M5 3.5v9l7-4.5z", check: "M3 8.5l3.2 3.2L13 5", cross: "M4 4l8 8M12 4l-8 8", stop: "M4.5 4.5h7v7h-7z",
  pause: "M5.5 4v8M10.5 4v8", alert: "M8 4.5v4M8 11.4v.1M8 1.5l6.8 12H1.2z", clock: "M8 4.5V8l2.4 1.6M8 14A6 6 0 108 2a6 6 0 000 12z",
  restart: "M13 8a5 5 0 11-1.6-3.7M13 2.5v2.6h-2.6", info: "M8 7.5v4M8 4.8v.1M8 14.5A6.5 6.5 0 108 1.5a6.5 6.5 0 000 13z",
  drop: "M8 1.8c2.7 3.3 4.2 5.6 4.2 7.7a4.2 4.2 0 01-8.4 0c0-2.1 1.5-4.4 4.2-7.7z", copy: "M5.5 5.5V2.8h7.7v7.7h-2.7M2.8 5.5h7.7v7.7H2.8z",
  sun: "M8 11a3 3 0 100-6 3 3 0 000 6zM8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1.1 1.1M11.9 11.9L13 13M13 3l-1.1 1.1M4.1 11.9L3 13",
  moon: "M13.5 9.5A6 6 0 016.5 2.500a6 6 0 107 7z", screen: "M2 3h12v8H2zM5.500 13.5h5", key: "M6 10a3 3 0 100-6 3 3 0 000 6zM8.500 8.2L14 13M11.500 11l1.500-1.500",
  up: "M8 13V4M4 7.500L8 3.500l4 4", down: "M8 3v9M4 8.500l4 4 4-4", save: "M3 3h8l2 2v8H3zM5.500 3v3.500h4V3M5.500 13V9.500h5V13",
  scale: "M3 13h10M4 10V8M8 10V3M12 10V6", upload: "M8 10.500V3M5 5.800L8 2.800l3 3M3 10.500V13h10v-2.500", arrow: "M3 8h9M8.500 4.500L12 8l-3.500 3.500",
  book: "M8 4C6.500 2.800 4.500 2.500 2 2.700v9.600c2.500-.200 4.500.100 6 1.300 1.500-1.200 3.500-1.500 6-1.300V2.700C11.500 2.500 9.500 2.800 8 4zM8 4v9.600",
  search: "M7 11.500a4.500 4.500 0 100-9 4.500 4.500 0 000 9zM10.300 10.300L14 14", flow: "M2 4h3.500C9 4 7 12 10.500 12H14M2 8h3",
};

/** @param {{name: keyof PATHS}} props */
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;

export const Mark = () => html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
  <rect class="mark-field" width="32" height="32" rx="8" />
  <path class="mark-pipe" d="M6 9h6c3 0 4 2 5 5l1 3c1 3 2 5 5 5h3" /><path class="mark-flow" d="M6 17h4c2 0 3 1 4 4" /></svg>`;
