/**
 * Login at an OpenID Connect provider: authorization code with PKCE. The browser goes there and comes back with a code,
 * which the dispatcher exchanges, so that this page talks to its own address only.
 */
import { post, setToken } from "./api.js";

const UNDERWAY = "penstock-login";

/** @typedef {{issuer: string, authorization_endpoint: string, client_id: string, scopes: string}} Offer */

const address = () => location.origin + location.pathname;

/** Leave for the provider. @param {Offer} offer */
export async function startLogin(offer) {
  const [verifier, state, nonce] = [random(), random(), random()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const underway = { verifier, state, nonce, issuer: offer.issuer, place: location.hash };
  sessionStorage.setItem(UNDERWAY, JSON.stringify(underway));
  const to = new URL(offer.authorization_endpoint);
  const asked = {
    response_type: "code", client_id: offer.client_id, redirect_uri: address(), scope: offer.scopes, state, nonce,
    code_challenge: base64url(new Uint8Array(digest)), code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(asked)) to.searchParams.set(name, value);
  location.assign(to);
}

/** Come back, if this is what happens: takes the code out of the address. Why there is no token, or nothing. @returns {Promise<string>} */
export async function finishLogin() {
  const query = new URLSearchParams(location.search);
  if (!query.has("code") && !query.has("error")) return "";
  const underway = JSON.parse(sessionStorage.getItem(UNDERWAY) ?? "{}");
  sessionStorage.removeItem(UNDERWAY);
  history.replaceState(null, "", location.pathname + (underway.place ?? ""));
  if (!underway.state || query.get("state") !== underway.state) return "This login was not begun in this tab. Log in again.";
  if (query.has("iss") && query.get("iss") !== underway.issuer) return "This login came back from another provider. Log in again.";
  const code = query.get("code");
  if (!code) return `The provider did not log you in (${(query.get("error") ?? "").slice(0, 40)}).`;
  try {
    const given = { code, code_verifier: underway.verifier, redirect_uri: address(), nonce: underway.nonce };
    setToken((await post("/penstock/v1/login/token", given)).token);
    return "";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** @param {Uint8Array} bytes */
const base64url = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
