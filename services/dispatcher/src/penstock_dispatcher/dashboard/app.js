/** The dashboard: what is around all pages, and which page an address means. */
import { html, render, useEffect, useRef, useState } from "./vendor/preact.js";
import { hasToken, onTokenWanted, setToken } from "./core/api.js";
import { finishLogin } from "./core/login.js";
import { usePolled } from "./core/poll.js";
import { href, usePlace } from "./core/router.js";
import { applyTheme, setTheme, theme, THEMES } from "./core/theme.js";
import { duration } from "./core/format.js";
import { setWho, takesJobs } from "./parts/allowed.js";
import { Empty, useSeen } from "./parts/bits.js";
import { Icon, Mark } from "./parts/icons.js";
import { ClusterPage } from "./pages/cluster.js";
import { JobPage } from "./pages/job.js";
import { JobsPage } from "./pages/jobs.js";
import { RunPage } from "./pages/run.js";
import { RunsPage } from "./pages/runs.js";
import { SchedulePage, SchedulesPage } from "./pages/schedules.js";
import { SignIn } from "./pages/sign_in.js";
import { WorkersPage } from "./pages/workers.js";

const SECTIONS = [
  ["jobs", "Jobs"], ["runs", "Runs on Spark"], ["schedules", "Schedules"], ["taskmanagers", "Task managers"], ["cluster", "Cluster"],
];

const OF_CLUSTERS = new Set(["runs", "schedules"]);

/** @param {{problem: string}} props why a login came to nothing; empty if it did not, or there was none */
function App({ problem }) {
  const { path } = usePlace();
  const [wanted, setWanted] = useState(!!problem);
  const [why, setWhy] = useState("");
  const [visit, setVisit] = useState(0);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const first = useRef(true);
  useEffect(() => onTokenWanted((reason) => {
    setWhy(reason);
    setWanted(true);
  }), []);
  const where = `${path[0] ?? ""}/${path[1] ?? ""}`;
  useEffect(() => {
    if (!first.current) main.current?.focus({ preventScroll: true });
    first.current = false;
    scrollTo(0, 0);
  }, [where]);
  const enter = (/** @type {string} */ token) => {
    setToken(token);
    setWanted(false);
    setVisit(visit + 1);
  };
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); main.current?.focus(); }}>Skip to content</a>
    <${Header} section=${path[0] ?? "jobs"} key=${`header-${visit}`} wanted=${wanted} leave=${() => { setToken(""); setVisit(visit + 1); }} />
    <main id="main" tabindex="-1" ref=${main}>
      ${wanted ? html`<${SignIn} enter=${enter} problem=${problem} why=${why} />` : html`<${Page} path=${path} key=${`page-${visit}`} />`}
    </main>`;
}

/** @param {{path: string[]}} props */
function Page({ path }) {
  const [section = "jobs", name] = path;
  useEffect(() => {
    document.title = `${SECTIONS.find(([key]) => key === section)?.[1] ?? "Penstock"} · Penstock`;
  }, [section, name]);
  if (section === "jobs") return name ? html`<${JobPage} key=${name} path=${path} />` : html`<${JobsPage} />`;
  if (section === "runs") return name ? html`<${RunPage} key=${name} run=${name} />` : html`<${RunsPage} />`;
  if (section === "schedules") return name ? html`<${SchedulePage} key=${name} name=${name} />` : html`<${SchedulesPage} />`;
  if (section === "taskmanagers") return html`<${WorkersPage} />`;
  if (section === "cluster") return html`<${ClusterPage} />`;
  return html`<${Empty} title="There is no such page"><a href=${href("jobs")}>Go to the jobs</a><//>`;
}

/** @param {any} props */
function Header({ section, wanted, leave }) {
  const overview = usePolled(wanted ? null : "/penstock/v1/overview", 5_000);
  const { data: who } = usePolled(wanted ? null : "/penstock/v1/whoami", 10_000);
  const [, again] = useState({});
  useEffect(() => {
    setWho(who ?? null);
    again({});
  }, [who]);
  const sections = takesJobs() ? SECTIONS : SECTIONS.filter(([key]) => !OF_CLUSTERS.has(key));
  return html`<header class="top">
    <a class="brand" href=${href("jobs")}><${Mark} />Penstock</a>
    <nav aria-label="Main" ref=${useSeen(section)}><ul>${sections.map(([key, title]) => html`
      <li key=${key}><a href=${href(key)} aria-current=${section === key ? "page" : undefined}>${title}</a></li>`)}</ul></nav>
    <div class="top-end">
      ${!wanted && html`<${Health} overview=${overview} />`}
      ${hasToken() && !wanted && html`<button class="icon-button" onClick=${leave} aria-label="Forget the access token" title=${who ? `Forget the access token of ${who.name} (role ${who.role})` : "Forget the access token"}><${Icon} name="key" /></button>`}
      <a class="icon-button" href="/documentation/" target="_blank" rel="noopener" aria-label="Documentation" title="Documentation"><${Icon} name="book" /></a>
      <${ThemeButton} />
    </div>
  </header>`;
}

/** Whether anybody leads. @param {{overview: import("./core/poll.js").Polled}} props */
function Health({ overview }) {
  const [tone, text] = healthOf(overview);
  return html`<a class="health" data-tone=${tone} href=${href("cluster")} title="How the cluster is"><span class="dot"></span><span role="status">${text}</span></a>`;
}

/** @param {import("./core/poll.js").Polled} overview */
function healthOf({ data, error }) {
  if (error && error.status !== 401) return ["bad", error.status ? "Not answering" : "Not reachable"];
  if (!data) return ["quiet", "Connecting"];
  if (!data.leader) return takesJobs() ? ["bad", "No leader"] : ["quiet", "Not running"];
  if (data.deaf_us) return ["warn", `No word from Kafka for ${duration(data.deaf_us)}`];
  return ["good", "Live"];
}

function ThemeButton() {
  const [now, setNow] = useState(theme());
  const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length] ?? "system";
  const turn = () => {
    setTheme(next);
    setNow(next);
  };
  const icons = { system: "screen", light: "sun", dark: "moon" };
  return html`<button class="icon-button" onClick=${turn} aria-label=${`Colours: ${now}. Change to ${next}`} title=${`Colours: ${now}`}>
    <${Icon} name=${icons[now]} /></button>`;
}

applyTheme();
const root = /** @type {HTMLElement} */ (document.getElementById("app"));
const problem = await finishLogin();
root.replaceChildren();
render(html`<${App} problem=${problem} />`, root);
