/** Change a question and ask it again: the old one stays, as another branch. */

/** @returns {import("../transcript/actions.js").Action} */
export const editMessage = () => ({
  word: "Edit",
  labels: { user: "Edit message" },
  act: (bubble) => bubble.edit(),
});
