/** What a share link shows, in the format of an export, so that it can be imported. */

/** @param {{title: string, messages: object[]}} shared the JSON of a share @returns {object} */
export function exportOf({ title, messages }) {
  return {
    format: "parley.session",
    version: 1,
    session: { title },
    messages: messages.map(({ role, content, status, created_at, model, tool_calls }, place) => ({
      id: String(place),
      ...(place > 0 && { parent_id: String(place - 1) }), // a share is one path
      ...{ role, content, status, created_at },
      ...(model !== undefined && { model }),
      ...(tool_calls !== undefined && { tool_calls }),
    })),
  };
}
