/** Where we are: the part of the address behind `#`, so that every address is the same file. */
import { useEffect, useState } from "../vendor/preact.js";

/** @typedef {{path: string[], query: URLSearchParams}} Place */

/** @returns {Place} */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { path: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

/** @param {...string} parts @returns {string} */
export const href = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** @param {string} to */
export const go = (to) => {
  location.hash = to.replace(/^#/, "");
};

/** Change a part of the query without a step in the browser's history. @param {Record<string, string>} changes */
export function setQuery(changes) {
  const { query } = place();
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, "", location.hash.split("?")[0] + (text ? `?${text}` : ""));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** @returns {Place} */
export function usePlace() {
  const [here, setHere] = useState(place);
  useEffect(() => {
    const changed = () => setHere(place());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return here;
}

/** @param {string} part */
function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
