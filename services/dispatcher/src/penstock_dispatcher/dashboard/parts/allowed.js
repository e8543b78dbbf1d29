/**
 * What the role of this page's token allows, and what nobody can do here. The interface refuses the rest in any case; here
 * it is said beforehand.
 */
import { html, useEffect, useState } from "../vendor/preact.js";

const ROLES = ["view", "operate", "submit"];
let drawn = 0;

/** @typedef {{name: string, role: string, refused?: Record<string, string>}} Who */

/** @type {Who | null} Not known yet: nothing is held back. */
let who = null;
/** @type {Set<() => void>} */
const listeners = new Set();

/** @param {Who | null} found */
export function setWho(found) {
  who = found;
  for (const listener of listeners) listener();
}

/** Whether jobs can be submitted: else this is one run, which began by itself. */
export const takesJobs = () => !who?.refused?.submit;

/** Why something cannot be done, which needs a role or is not possible everywhere; empty if it can. @param {string} [role] @param {string} [deed] @returns {string} */
function useRefusal(role, deed = "") {
  const [, again] = useState({});
  useEffect(() => {
    const listener = () => again({});
    listeners.add(listener);
    listener(); // it may have become known since this was drawn
    return () => void listeners.delete(listener);
  }, []);
  if (who?.refused?.[deed]) return who.refused[deed];
  if (!who || !role || ROLES.indexOf(who.role) >= ROLES.indexOf(role)) return "";
  return `The token of ${who.name} has the role ${who.role}; this needs the role ${role}.`;
}

/** Controls that need a role, or are for a deed that is not possible everywhere: disabled where it is not allowed, with the
 * reason beside them. @param {{role?: string, deed?: string, children: any}} props */
export function Allowed({ role, deed, children }) {
  const why = useRefusal(role, deed);
  const [id] = useState(() => `not-allowed-${(drawn += 1)}`);
  return html`<fieldset class="allowed" disabled=${!!why} aria-describedby=${why ? id : undefined}>${children}</fieldset>
    ${why && html`<p class="not-allowed" id=${id}>${why}</p>`}`;
}
