/** Show how an answer came about. */

/** @returns {import("../transcript/actions.js").Action} */
export const showDetails = (page) => ({
  word: "Details",
  labels: { assistant: "Details of the answer" },
  isRare: true,
  act: ({ message }) => (page.dialog.value = { kind: "details", message }),
});
