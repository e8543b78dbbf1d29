/**
 * Documents that stay current: asked for again and again while somebody looks.
 *
 * Plain requests, no stream: any dispatcher may answer each of them, one that is replaced is not missed, and a page in
 * the background asks for nothing.
 */
import { useCallback, useEffect, useRef, useState } from "../vendor/preact.js";
import { get } from "./api.js";

const INTERVAL_MS = 2_000;
const LONGEST_MS = 15_000;
const SHARE = 8; // of the time, answers may take one part in so many: what is dear to find is asked for less often

/**
 * @typedef {object} Polled
 * @property {any} data      the newest answer; undefined until there is one
 * @property {import("./api.js").ApiError | null} error      why the last question was not answered
 * @property {number} at     when the newest answer came, as Date.now()
 * @property {() => void} reload      asks at once
 */

/**
 * @param {string | null} path      null: nothing is asked for
 * @param {number} [intervalMs]
 * @returns {Polled}
 */
export function usePolled(path, intervalMs = INTERVAL_MS) {
  const [state, setState] = useState({ path, data: undefined, error: null, at: 0 });
  const ask = useRef(() => {});
  useEffect(() => {
    setState({ path, data: undefined, error: null, at: 0 });
    if (path === null) return undefined;
    const poll = new Poll(path, intervalMs, (found) => setState((old) => ({ ...old, ...found, path })));
    ask.current = () => poll.now();
    return () => poll.end();
  }, [path, intervalMs]);
  const reload = useCallback(() => ask.current(), []);
  const current = state.path === path ? state : { data: undefined, error: null, at: 0 };
  return { data: current.data, error: current.error, at: current.at, reload };
}

/** One document, asked for while the page is visible. */
class Poll {
  /** @param {string} path @param {number} intervalMs @param {(found: object) => void} tell */
  constructor(path, intervalMs, tell) {
    this.path = path;
    this.intervalMs = intervalMs;
    this.tell = tell;
    this.failures = 0;
    this.abort = new AbortController();
    this.onVisible = () => {
      if (!document.hidden) this.now();
    };
    document.addEventListener("visibilitychange", this.onVisible);
    this.now();
  }

  end() {
    this.abort.abort();
    clearTimeout(this.timer);
    document.removeEventListener("visibilitychange", this.onVisible);
  }

  now() {
    clearTimeout(this.timer);
    if (!this.asking) this.ask();
  }

  async ask() {
    this.asking = true;
    const began = performance.now();
    try {
      const data = await get(this.path, this.abort.signal);
      this.failures = 0;
      if (!this.abort.signal.aborted) this.tell({ data, error: null, at: Date.now() });
    } catch (error) {
      this.failures += 1;
      if (!this.abort.signal.aborted) this.tell({ error });
    }
    this.asking = false;
    this.wait(performance.now() - began);
  }

  /** @param {number} tookMs */
  wait(tookMs) {
    if (this.abort.signal.aborted || document.hidden) return;
    const backOff = this.intervalMs * 2 ** Math.min(this.failures, 3);
    this.timer = setTimeout(() => this.now(), Math.min(LONGEST_MS, Math.max(backOff, tookMs * SHARE)));
  }
}
