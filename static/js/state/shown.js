/** What the transcript shows: the branch in use, and the questions on their way that it does not hold yet. */

import { withOutputs } from "./tool-calls.js";

/**
 * @param {import("./message.js").Message[]} path
 * @param {import("../connection/outbox.js").Send[]} sends
 * @returns {object[]} messages, oldest first; those on their way are `unsent`
 */
export function shownMessages(path, sends) {
  const keys = new Set(path.map((message) => message.key));
  const questions = sends.filter(({ key, text }) => text !== "" && !keys.has(key));
  const edit = questions.find(({ wish }) => wish?.parent_id !== undefined);
  const unsent = questions.map(({ key, text }) => ({ key, text, role: "user", unsent: true, version: 0 }));
  const shown = edit ? upTo(path, edit.wish.parent_id) : path;
  return [...withResults(shown), ...unsent];
}

/** What tools gave back stands in the answer that has called them, and is no message of its own. */
function withResults(path) {
  path.forEach((message, place) => {
    if (!message.toolCalls) return;
    const next = path[place + 1];
    if (withOutputs(message.toolCalls, next?.role === "tool" ? next.outputs : [])) message.version += 1;
  });
  return path.filter(({ role }) => role !== "tool");
}

/** The messages that an edited one will follow; what it will stand beside is not among them. */
function upTo(path, messageId) {
  if (messageId === null) return [];
  const index = path.findIndex((message) => message.id === messageId);
  return index < 0 ? path : path.slice(0, index + 1);
}
