/** Let the model go on with an answer that was stopped or cut short, in the same message. */

/** @returns {import("../transcript/actions.js").Action} */
export const goOn = (page) => ({
  word: "Continue",
  labels: { assistant: "Continue the answer" },
  // Calls are over with the answer that has them: the server would refuse.
  fits: ({ message, isLast }) => isLast && message.status === "interrupted" && message.toolCalls === null,
  act: ({ message }) => page.ask({ continue_of: message.id }),
});
