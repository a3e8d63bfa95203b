/** What the page asks for over HTTP; everything that happens comes through the socket. */

import { newKey } from "./protocol.js";

export class SignedOut extends Error {}

/** The server's refusal; `error` is its error object, if it sent one. */
export class Refused extends Error {
  constructor(path, status, error) {
    super(error?.message ?? `${path} answered ${status}`);
    this.status = status;
    this.error = error ?? { code: "internal" };
  }
}

async function ask(method, path, { body, headers } = {}) {
  const given = body === undefined ? {} : { "Content-Type": "application/json" };
  const response = await fetch(path, { method, body, headers: { Accept: "application/json", ...given, ...headers } });
  if (response.status === 401) throw new SignedOut();
  const isJson = response.headers.get("content-type")?.startsWith("application/json");
  const answer = isJson ? await response.json() : null;
  if (!response.ok) throw new Refused(path, response.status, answer?.error);
  return answer;
}

const get = (path) => ask("GET", path);
const sessionPath = (sessionId) => `/v1/sessions/${encodeURIComponent(sessionId)}`;

/** @returns {Promise<{sessions: object[], next_cursor: string | null}>} newest first */
export function listSessions(cursor = null) {
  const query = new URLSearchParams({ limit: "50", ...(cursor && { cursor }) });
  return get(`/v1/sessions?${query}`);
}

/** @returns {Promise<object[]>} sessions whose titles contain the words, the newest first */
export async function searchSessions(words) {
  const query = new URLSearchParams({ limit: "20", q: words.slice(0, 200) });
  return (await get(`/v1/sessions?${query}`)).sessions;
}

/** @returns {Promise<{messages: object[], has_more: boolean}>} oldest first, before a message if one is named */
export function listMessages(sessionId, before = null) {
  const query = new URLSearchParams({ limit: "50", ...(before && { before }) });
  return get(`${sessionPath(sessionId)}/messages?${query}`);
}

/** @returns {Promise<{items: object[]}>} what waits to be asked, with whole texts */
export function getQueue(sessionId) {
  return get(`${sessionPath(sessionId)}/queue`);
}

/** @returns {Promise<object[]>} the models that there are; the first one answers by default */
export async function listModels() {
  return (await get("/v1/models")).data;
}

/** @returns {Promise<object[]>} the servers whose tools this server runs */
export async function listTools() {
  return (await get("/v1/tools")).servers;
}

/** @returns {Promise<object>} the new session, with the messages up to that one */
export function fork(sessionId, messageId) {
  const headers = { "Idempotency-Key": newKey() };
  return ask("POST", `${sessionPath(sessionId)}/fork`, { headers, body: JSON.stringify({ message_id: messageId }) });
}

/** @returns {Promise<string>} the address of the session's share link, made or brought up to date */
export async function share(sessionId) {
  const { path, id } = await ask("POST", `${sessionPath(sessionId)}/share`);
  return new URL(path ?? `/s/${id}`, location.href).href;
}

export function unshare(sessionId) {
  return ask("DELETE", `${sessionPath(sessionId)}/share`);
}

/** @returns {Promise<object>} what a share link shows */
export function readShare(shareId) {
  return get(`/s/${encodeURIComponent(shareId)}`);
}

/**
 * @param {string} file the text of an export
 * @param {string} [key] the same key again gives the same session
 * @returns {Promise<object>} the new session
 */
export function importSession(file, key) {
  return ask("POST", `/v1/sessions/import`, { body: file, headers: key && { "Idempotency-Key": key } });
}

/** @returns {Promise<{presets: {name: string, settings: object}[], default: string | null}>} */
export function listPresets() {
  return get("/v1/presets");
}

/** @param {{name: string, settings: object, default: boolean}} preset @returns what `listPresets` does */
export function putPreset(preset) {
  return ask("PUT", "/v1/presets", { body: JSON.stringify(preset) });
}

export function deletePreset(name) {
  return ask("DELETE", `/v1/presets?${new URLSearchParams({ name })}`);
}

/** The address of a file. @param {"md" | "json"} format */
export function exportPath(sessionId, format) {
  return `${sessionPath(sessionId)}/export?format=${format}`;
}

/** Delete a session although the page goes away: the browser sends it all the same. */
export function removeAtOnce(sessionId) {
  fetch(sessionPath(sessionId), { method: "DELETE", keepalive: true }).catch(() => {});
}

/** Delete a session; one that is gone already is deleted. */
export function removeSession(sessionId) {
  return ask("DELETE", sessionPath(sessionId)).catch((error) => {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
  });
}

/** End the login of this browser, or of all the user's browsers. */
export function logOut({ everywhere }) {
  return ask("POST", `/v1/logout?everywhere=${everywhere}`);
}
