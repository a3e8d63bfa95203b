/** The few things the page reads over HTTP; everything that happens comes through the socket. */

export class SignedOut extends Error {}

async function get(path) {
  const response = await fetch(path, { headers: { Accept: "application/json" } });
  if (response.status === 401) throw new SignedOut();
  if (!response.ok) throw new Error(`${path} answered ${response.status}`);
  return response.json();
}

/** @returns {Promise<{sessions: object[], next_cursor: string | null}>} newest first */
export function listSessions(cursor = null) {
  const query = new URLSearchParams({ limit: "50", ...(cursor && { cursor }) });
  return get(`/v1/sessions?${query}`);
}

/** @returns {Promise<{messages: object[], has_more: boolean}>} oldest first, before a message if one is named */
export function listMessages(sessionId, before = null) {
  const query = new URLSearchParams({ limit: "50", ...(before && { before }) });
  return get(`/v1/sessions/${encodeURIComponent(sessionId)}/messages?${query}`);
}

/** @returns {Promise<string>} the name of the model that answers by default */
export async function modelName() {
  const { data } = await get("/v1/models");
  return data[0]?.id ?? "";
}
