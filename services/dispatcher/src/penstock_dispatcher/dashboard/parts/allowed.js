/** What the role of this page's token allows. The interface refuses the rest in any case; here it is said beforehand. */
import { html, useEffect, useState } from "../vendor/preact.js";

const ROLES = ["view", "operate", "submit"];
let drawn = 0;

/** @typedef {{name: string, role: string}} Who */

/** @type {Who | null} Not known yet: nothing is held back. */
let who = null;
/** @type {Set<() => void>} */
const listeners = new Set();

/** @param {Who | null} found */
export function setWho(found) {
  who = found;
  for (const listener of listeners) listener();
}

/** Why something that needs a role cannot be done; empty if it can. @param {string} role @returns {string} */
function useRefusal(role) {
  const [, again] = useState({});
  useEffect(() => {
    const listener = () => again({});
    listeners.add(listener);
    listener(); // it may have become known since this was drawn
    return () => void listeners.delete(listener);
  }, []);
  if (!who || ROLES.indexOf(who.role) >= ROLES.indexOf(role)) return "";
  return `The token of ${who.name} has the role ${who.role}; this needs the role ${role}.`;
}

/** Controls that need a role: disabled for who lacks it, with the reason beside them. @param {{role: string, children: any}} props */
export function Allowed({ role, children }) {
  const why = useRefusal(role);
  const [id] = useState(() => `not-allowed-${(drawn += 1)}`);
  return html`<fieldset class="allowed" disabled=${!!why} aria-describedby=${why ? id : undefined}>${children}</fieldset>
    ${why && html`<p class="not-allowed" id=${id}>${why}</p>`}`;
}
