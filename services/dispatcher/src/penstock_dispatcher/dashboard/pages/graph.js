/** The job graph: a box per vertex, coloured by what holds it up, in layers from the sources to the sinks. */
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Graph, layout } from "../vendor/dagre.js";
import { compact, duration, percent, rate, watermarkLag } from "../core/format.js";
import { href } from "../core/router.js";
import { Documented, Load, pressure } from "../parts/bits.js";

const WIDTH = 264;
const HEIGHT = 128;
const LOW = 64;
const NARROW_PX = 760;
const BUSY = 0.9;

/** @param {{loads: import("../core/loads.js").VertexLoad[], job: string, selected: string, still?: boolean}} props `still`: no
 * more is known of its vertices than that they are there. */
export function JobGraph({ loads, job, selected, still = false }) {
  const narrow = useNarrow();
  const shape = loads.map((load) => `${load.id}<${load.inputs.map((input) => input.vertex).join()}`).join(";");
  const height = still || loads.every((load) => !load.tasks.length) ? LOW : HEIGHT;
  const drawn = useMemo(() => draw(loads, narrow, height), [shape, narrow, height]);
  const byId = new Map(loads.map((load) => [load.id, load]));
  return html`<figure class="graph" aria-label="Job graph">
    <div class="graph-scroll"><div class="graph-field" style=${{ width: `${drawn.width}px`, height: `${drawn.height}px` }}>
      <svg width=${drawn.width} height=${drawn.height} aria-hidden="true">
        <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 .5L7.500 4 0 7.500z" /></marker></defs>
        ${drawn.edges.map((edge) => html`<path key=${edge.key} class="edge" data-tone=${toneOf(byId.get(edge.from))} d=${edge.path} marker-end="url(#arrow)" />`)}
      </svg>
      ${drawn.edges.map((edge) => edge.label && html`<span class="edge-label" key=${edge.key} style=${{ left: `${edge.x}px`, top: `${edge.y}px` }}>${edge.label}</span>`)}
      <ul>${drawn.nodes.map((node) => html`<${Box} key=${node.id} node=${node} load=${byId.get(node.id)} job=${job} selected=${selected === node.id} still=${still} />`)}</ul>
    </div></div>
    ${!still && html`<figcaption><span><i class="key" data-tone="good"></i>not backpressured</span>
      <span><i class="key" data-tone="hot"></i>busy for ${percent(BUSY)} of its time or more</span>
      <span><i class="key" data-tone="warn"></i>backpressured for 10% or more: what follows is slower</span>
      <span><i class="key" data-tone="bad"></i>backpressured for half of its time or more, or a subtask failed</span>
      <span><i class="key"></i>not measured</span><${Documented} page="operating.html#slow-and-lagging-jobs">Slow jobs<//></figcaption>`}
  </figure>`;
}

/** @param {any} props */
function Box({ node, load, job, selected, still }) {
  if (!load) return null;
  const states = statesOf(load);
  const lag = watermarkLag(load.watermark);
  const head = html`<span class="vertex-head"><span class="vertex-name clip" title=${load.name}>${load.name.replaceAll(" -> ", " → ")}</span><span class="tag num">× ${load.parallelism}</span></span>
    <span class="vertex-what clip">${whatOf(load)}</span>`;
  const place = { left: `${node.x - WIDTH / 2}px`, top: `${node.y - node.height / 2}px`, width: `${WIDTH}px`, height: `${node.height}px` };
  if (still || !load.tasks.length) return html`<li style=${place}><span class="vertex">${head}</span></li>`;
  return html`<li style=${place}>
    <a class="vertex" data-tone=${toneOf(load)} aria-current=${selected ? "true" : undefined} href=${selected ? href("jobs", job) : href("jobs", job, "overview", load.id)}
        aria-label=${`${load.name}: ${spoken(load)}`}>
      ${head}
      <span class="vertex-load"><${Load} several known=${load.known} busy=${load.busy} blocked=${load.blocked} />${states && html`<span class="vertex-states clip">${states}</span>`}</span>
      <span class="vertex-rates num"><span><b>${rate(load.rowsIn)}</b> in</span><span><b>${rate(load.rowsOut)}</b> out /s</span></span>
      <span class="vertex-lag num clip">${lag === null ? "no watermark yet" : `${duration(lag)} behind`}${load.silentSplit === null ? "" : ` · waits for split ${load.silentSplit}`}${load.behind ? ` · ${compact(load.behind)} to read` : ""}</span>
    </a></li>`;
}

/** @param {import("../core/loads.js").VertexLoad | undefined} load */
function toneOf(load) {
  if (!load) return "";
  if (load.tasks.some((task) => task.state === "failed")) return "bad";
  if (!load.known) return "";
  if (load.blocked >= 0.1) return pressure(load.blocked);
  return load.busy >= BUSY ? "hot" : "good";
}

/** States of subtasks, unless all of them simply run. @param {import("../core/loads.js").VertexLoad} load */
function statesOf(load) {
  const counts = new Map();
  for (const task of load.tasks) counts.set(task.state, (counts.get(task.state) ?? 0) + 1);
  counts.delete("running");
  const missing = load.parallelism - load.tasks.length;
  if (missing > 0 && load.tasks.length) counts.set("not deployed", missing);
  return [...counts].map(([state, n]) => `${n} ${state}`).join(", ");
}

/** @param {import("../core/loads.js").VertexLoad} load */
const spoken = (load) =>
  load.known ? `${percent(load.busy)} busy, ${percent(load.blocked)} backpressured, ${rate(load.rowsIn)} rows in and ${rate(load.rowsOut)} out a second` : statesOf(load) || "not measured yet";

/** What it reads, waits for, writes. @param {import("../core/loads.js").VertexLoad} load */
function whatOf(load) {
  return load.operators
    .map(({ settings }) => settings.topic ?? settings.path ?? settings.window ?? settings.on ?? settings.data ?? settings.source ?? settings.sink)
    .filter((text) => typeof text === "string" && text).join(" · ") || load.id;
}

/** @param {import("../core/loads.js").VertexLoad[]} loads @param {boolean} narrow @param {number} height */
function draw(loads, narrow, height) {
  const graph = new Graph();
  graph.setGraph({ rankdir: narrow ? "TB" : "LR", nodesep: 28, ranksep: narrow ? 48 : 84, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const load of loads) graph.setNode(load.id, { width: WIDTH, height });
  for (const load of loads) for (const input of load.inputs) graph.setEdge(input.vertex, load.id, { ship: input.ship });
  layout(graph);
  const size = graph.graph();
  return {
    width: Math.ceil(size.width ?? WIDTH), height: Math.ceil(size.height ?? height),
    nodes: graph.nodes().map((/** @type {string} */ id) => ({ id, ...graph.node(id) })),
    edges: graph.edges().map((/** @type {any} */ { v, w }) => edgeOf(v, w, graph.edge(v, w))),
  };
}

/** @param {string} from @param {string} to @param {any} edge */
function edgeOf(from, to, edge) {
  const points = edge.points;
  const middle = points[Math.floor(points.length / 2)];
  return { key: `${from}>${to}`, from, path: smooth(points), label: edge.ship === "forward" ? "" : edge.ship, x: middle.x, y: middle.y };
}

/** A line through the middles between points, bent at the points. @param {{x: number, y: number}[]} points */
function smooth(points) {
  const [first, ...rest] = points;
  const at = (/** @type {{x: number, y: number}} */ point) => `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
  let path = `M${at(first)}`;
  rest.forEach((point, i) => {
    const next = rest[i + 1];
    path += next ? ` Q${at(point)} ${at({ x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 })}` : ` L${at(point)}`;
  });
  return path;
}

function useNarrow() {
  const query = useRef(matchMedia(`(max-width: ${NARROW_PX}px)`));
  const [narrow, setNarrow] = useState(query.current.matches);
  useEffect(() => {
    const changed = () => setNarrow(query.current.matches);
    query.current.addEventListener("change", changed);
    return () => query.current.removeEventListener("change", changed);
  }, []);
  return narrow;
}
