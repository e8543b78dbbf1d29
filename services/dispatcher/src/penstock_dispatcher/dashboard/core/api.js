/**
 * Asks the REST interface. Knows the access token, and what was answered last, so that an answer that has not changed is
 * not sent again.
 */

const TOKEN = "penstock-token";
const PATIENCE_MS = 20_000;
const REMEMBERED = 200;

/** @type {Map<string, {etag: string, data: any}>} */
const remembered = new Map();
/** @type {Set<(why: string) => void>} */
const whenRefused = new Set();

/** An answer other than 2xx, or none at all (`status` 0). */
export class ApiError extends Error {
  /** @param {number} status @param {string[]} messages */
  constructor(status, messages) {
    super(messages.join(" "));
    this.status = status;
    this.messages = messages;
  }
}

/** Call back whenever the interface wants another token. @param {(why: string) => void} callback @returns {() => void} */
export function onTokenWanted(callback) {
  whenRefused.add(callback);
  return () => whenRefused.delete(callback);
}

/** Kept for this tab, until it is closed. @param {string} token */
export function setToken(token) {
  remembered.clear();
  if (token) sessionStorage.setItem(TOKEN, token);
  else sessionStorage.removeItem(TOKEN);
}

export const hasToken = () => sessionStorage.getItem(TOKEN) !== null;

/**
 * The document at a path; the very same object as before if it has not changed.
 * @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>}
 */
export async function get(path, signal) {
  const known = remembered.get(path);
  const response = await send(path, { headers: known ? { "If-None-Match": known.etag } : {}, signal });
  if (response.status === 304 && known) return known.data;
  const data = await response.json();
  const etag = response.headers.get("etag");
  if (etag) remember(path, etag, data);
  return data;
}

/** @param {string} path @param {any} [body] @returns {Promise<any>} */
export async function post(path, body = {}) {
  const headers = { "Content-Type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

/** @param {string} path @param {FormData} form @returns {Promise<any>} */
export async function postForm(path, form) {
  return (await send(path, { method: "POST", headers: { "X-Requested-With": "dashboard" }, body: form }, 120_000)).json();
}

/** The bytes at a path. @param {string} path @returns {Promise<Blob>} */
export const download = async (path) => (await send(path, {}, 120_000)).blob();

/** @param {string} path @param {RequestInit} options @param {number} [patienceMs] @returns {Promise<Response>} */
async function send(path, options, patienceMs = PATIENCE_MS) {
  const patience = AbortSignal.timeout(patienceMs);
  const signal = options.signal ? AbortSignal.any([options.signal, patience]) : patience;
  const token = sessionStorage.getItem(TOKEN);
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, signal, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ApiError(0, [patience.aborted ? "The dispatcher does not answer in time." : "The dispatcher cannot be reached."]);
  }
  if (response.ok || response.status === 304) return response;
  const error = new ApiError(response.status, await messagesOf(response));
  const isOfNow = !options.signal?.aborted && token === sessionStorage.getItem(TOKEN); // a late answer says nothing of the next token
  if (response.status === 401 && isOfNow) for (const callback of whenRefused) callback(error.message);
  throw error;
}

/** @param {Response} response @returns {Promise<string[]>} */
async function messagesOf(response) {
  try {
    const { errors } = await response.json();
    if (Array.isArray(errors) && errors.length) return errors.map(String);
  } catch {
    // a proxy's page, say: its status is all that is known
  }
  return [`The dispatcher answers with HTTP ${response.status}.`];
}

/** @param {string} path @param {string} etag @param {any} data */
function remember(path, etag, data) {
  remembered.delete(path);
  remembered.set(path, { etag, data });
  if (remembered.size > REMEMBERED) remembered.delete(remembered.keys().next().value ?? "");
}
