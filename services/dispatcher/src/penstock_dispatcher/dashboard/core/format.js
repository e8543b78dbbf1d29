/** Numbers, sizes and times as text. What is not known is a dash, never a zero. */

export const NONE = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const known = (/** @type {any} */ value) => typeof value === "number" && Number.isFinite(value);

/** @param {number | null | undefined} value */
export const count = (value) => (known(value) ? whole.format(Number(value)) : NONE);

/** @param {number | null | undefined} value */
export const compact = (value) => {
  if (!known(value)) return NONE;
  return Math.abs(Number(value)) < 1000 ? whole.format(Number(value)) : short.format(Number(value));
};

/** Rows per second. @param {number | null | undefined} value */
export const rate = (value) => (known(value) ? (Number(value) > 0 && Number(value) < 10 ? Number(value).toFixed(1) : compact(value)) : NONE);

/** @param {number | null | undefined} share */
export const percent = (share) => (known(share) ? `${Math.round(Number(share) * 100)}%` : NONE);

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (!known(value)) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = Number(value);
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && size < 10 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

/** @param {number | null | undefined} us */
export function duration(us) {
  if (!known(us)) return NONE;
  const ms = Number(us) / 1000;
  if (ms < 1) return ms > 0 ? `${ms.toFixed(1)} ms` : "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const [minutes, hours, days] = [seconds / 60, seconds / 3600, seconds / 86_400].map(Math.floor);
  if (minutes < 60) return both(minutes, "min", Math.floor(seconds % 60), "s");
  if (hours < 48) return both(hours, "h", minutes % 60, "min");
  return both(days, "d", hours % 24, "h");
}

/** @param {number} much @param {string} unit @param {number} more @param {string} smaller */
const both = (much, unit, more, smaller) => (more ? `${much} ${unit} ${more} ${smaller}` : `${much} ${unit}`);

/** @param {number | null | undefined} us @param {number} [nowMs] */
export const since = (us, nowMs = Date.now()) => (known(us) && us ? duration(Math.max(0, nowMs * 1000 - Number(us))) : NONE);

/** @param {number | null | undefined} us @param {number} [nowMs] */
export const ago = (us, nowMs = Date.now()) => (known(us) && us ? `${since(us, nowMs)} ago` : NONE);

/** Local time. @param {number | null | undefined} us */
export function time(us) {
  if (!known(us) || !us) return NONE;
  const at = new Date(Number(us) / 1000);
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return `${day} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

const FIRST_US = -62_135_596_800_000_000; // 0001-01-01: what is before has not begun
const LAST_US = 253_402_300_800_000_000; // 10000-01-01: what is later has ended

/** Event time reached. @param {number | null | undefined} us */
export function watermark(us) {
  if (!known(us) || Number(us) < FIRST_US) return NONE;
  return Number(us) >= LAST_US ? "end of input" : new Date(Number(us) / 1000).toISOString().replace("T", " ").slice(0, 19);
}

/** How far event time is behind the clock; null where that says nothing. @param {number | null | undefined} us */
export const watermarkLag = (us) =>
  known(us) && Number(us) >= FIRST_US && Number(us) < LAST_US ? Math.max(0, Date.now() * 1000 - Number(us)) : null;

/** @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;
