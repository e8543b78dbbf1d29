/** The cluster itself: who leads, which version, how this dispatcher is set up. */
import { html } from "../vendor/preact.js";
import { count, duration, plural } from "../core/format.js";
import { usePolled } from "../core/poll.js";
import { Card, Documented, Fact, Facts, Note, Ready, useStale } from "../parts/bits.js";
import { takesJobs } from "../parts/allowed.js";
import { Pairs } from "./described.js";

export function ClusterPage() {
  const polled = usePolled("/penstock/v1/overview");
  const config = usePolled("/v1/jobmanager/config", 60_000);
  useStale(polled.data?.deaf_us > 0);
  return html`<div class="page-head"><h1>Cluster</h1><${Documented} page="clusters.html">Clusters<//><a class="button" href="/docs">REST interface</a></div>
    <${Ready} polled=${polled} what="the cluster">${(/** @type {any} */ one) => html`
      ${!one.leader && !takesJobs() && html`<${Note} title="The run has ended, or has not begun." />`}
      ${!one.leader && takesJobs() && html`<${Note} tone="bad" title="No coordinator leads this cluster.">Jobs that run go on for a while, but nobody restarts them, takes checkpoints, or answers requests. Start one: <code>penstock coordinator</code> <${Documented} page="runbooks.html#penstocknoleader">What to do<//><//>`}
      ${one.deaf_us > 0 && html`<${Note} tone="warn" title="The leader hears nothing from Kafka.">For ${duration(one.deaf_us)} by now. Look whether the brokers are up.<//>`}
      <${Facts} label="The cluster in short">
        <${Fact} label="Leader" value=${one.leader ? one.address || one.leader.slice(0, 12) : "none"} note=${one.epoch ? `epoch ${one.epoch}` : ""} tone=${one.leader || !takesJobs() ? "" : "bad"} />
        <${Fact} label="Slots" value=${count(one.slots)} note=${`${count(one.free_slots)} free`} />
        <${Fact} label="Workers" value=${count(one.workers)} note=${plural(Object.values(one.jobs).reduce((/** @type {number} */ sum, n) => sum + Number(n), 0), "job")} />
        <${Fact} label="Version" value=${one.version} />
      <//>`}<//>
    <${Card} title="Settings of this dispatcher" id="config-title" actions=${html`<${Documented} page="settings.html">All settings<//>`}><${Ready} polled=${config} what="the settings">${(/** @type {any} */ found) => html`
      ${sectionsOf(found).map(([title, pairs]) => html`<h3 key=${title}>${title}</h3><${Pairs} pairs=${pairs} />`)}
      <p class="faint">Secrets are masked. Other dispatchers of the cluster may have other settings.</p>`}<//><//>`;
}

/** Settings as the file has them: those without a section first, then section by section, by name. @param {{key: string, value: string}[]} settings
 * @returns {[string, [string, string][]][]} */
function sectionsOf(settings) {
  const sections = new Map(/** @type {[string, [string, string][]][]} */ ([["Cluster", []]]));
  for (const { key, value } of settings.toSorted((a, b) => (a.key < b.key ? -1 : 1))) {
    const [section, ...rest] = key.split(".");
    const title = rest.length ? `[${section}]` : "Cluster";
    sections.set(title, [...(sections.get(title) ?? []), [rest.join(".") || key, value]]);
  }
  return [...sections].filter(([, pairs]) => pairs.length);
}
