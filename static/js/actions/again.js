/** Answer a question again: with the settings of the chat, or with others for this once. */

/** @returns {import("../transcript/actions.js").Action} */
export const answerAgain = (page) => ({
  word: "Again",
  labels: { assistant: "Answer again" },
  act: ({ message }) => page.ask({ regenerate_of: message.id }),
});

/** @returns {import("../transcript/actions.js").Action} */
export const answerAgainWith = (page) => ({
  word: "Again with other settings…",
  labels: { assistant: "Answer again with other settings" },
  isRare: true,
  act: ({ message }) => (page.dialog.value = { kind: "again", message }),
});
