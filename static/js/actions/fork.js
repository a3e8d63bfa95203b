/** Make a new chat of the conversation up to an answer. */

/** @returns {import("../transcript/actions.js").Action} */
export const forkHere = (page) => ({
  word: "New chat from here",
  labels: { assistant: "New chat from here" },
  isRare: true,
  act: ({ message }) => page.fork(message.id),
});
