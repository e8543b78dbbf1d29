/** What is shown to who has no token, or none that is good: login where a provider is set, and the field for a token. */
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { get, hasToken } from "../core/api.js";
import { startLogin } from "../core/login.js";
import { Note } from "../parts/bits.js";

/** @param {{enter: (token: string) => void, problem: string, why: string}} props */
export function SignIn({ enter, problem, why }) {
  const [token, setText] = useState("");
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  return html`<form class="card sign-in" onSubmit=${(/** @type {Event} */ event) => { event.preventDefault(); if (token.trim()) enter(token.trim()); }}>
    <h1>This cluster wants its access token</h1>
    ${problem && !hasToken() && html`<${Note} tone="bad" title="You are not logged in.">${problem}<//>`}
    ${hasToken() && html`<${Note} tone="bad" title="The token was not accepted.">${why}<//>`}
    <${Login} />
    <p>It is the one in <code>PENSTOCK_TOKEN</code>, or <code>token</code> in the cluster's settings. What it allows depends on its role; with the role submit, that is to run code.</p>
    <label for="token">Access token</label>
    <input id="token" type="password" autocomplete="off" spellcheck="false" ref=${field} value=${token} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />
    <p class="faint">It is kept in this tab until you close it, and sent to this address only.</p>
    <button class="button primary" type="submit" disabled=${!token.trim()}>Continue</button>
  </form>`;
}

/** The way to the provider, if there is one. */
function Login() {
  const [state, setState] = useState(/** @type {{offer?: import("../core/login.js").Offer, error?: string}} */ ({}));
  useEffect(() => {
    const abort = new AbortController();
    get("/penstock/v1/login", abort.signal).then(
      (offer) => setState({ offer }),
      (error) => !abort.signal.aborted && setState({ error: error.message }),
    );
    return () => abort.abort();
  }, []);
  const { offer, error } = state;
  if (error) return html`<${Note} tone="warn" title="Nobody can log in now.">${error}<//>`;
  if (!offer?.issuer) return null;
  if (!isSecureContext) return html`<${Note} tone="warn" title="To log in, open this page by HTTPS.">Browsers allow it nowhere else but on localhost.<//>`;
  return html`<button type="button" class="button primary" onClick=${() => startLogin(offer)}>Log in at ${new URL(offer.issuer).host}</button>`;
}
