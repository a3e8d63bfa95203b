/** What the transcript shows: the branch in use, and the questions on their way that it does not hold yet. */

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
  return [...(edit ? upTo(path, edit.wish.parent_id) : path), ...unsent];
}

/** The messages that an edited one will follow; what it will stand beside is not among them. */
function upTo(path, messageId) {
  if (messageId === null) return [];
  const index = path.findIndex((message) => message.id === messageId);
  return index < 0 ? path : path.slice(0, index + 1);
}
