/** Copy the Markdown of a message, as far as it is painted. */

import { copyFrom } from "../widgets/copy.js";

/** @returns {import("../transcript/actions.js").Action} */
export const copyMessage = () => ({
  word: "Copy",
  labels: { user: "Copy message", assistant: "Copy answer" },
  fits: ({ message }) => message.text !== "", // an answer may consist of calls alone
  act: ({ text }, button) => copyFrom(button, text),
});
