/** Copying: a message by its action, a block of code by the button in its caption. */

import { wordButton } from "./actions.js";

const CONFIRMATION_MS = 1600;
const WORD = "Copy";

/** Copies the Markdown of a message, as far as it is painted. @type {import("./actions.js").Action} */
export const copyMessage = {
  word: WORD,
  labels: { user: "Copy message", assistant: "Copy answer" },
  act: ({ text }, button) => copy(text, button),
};

export function copyCodeButton() {
  const button = wordButton(WORD, "Copy code");
  button.classList.add("copy-code");
  return button;
}

/** One listener serves all blocks of code in `root`: a patched block keeps old nodes for new ones. */
export function serveCopyCode(root) {
  root.addEventListener("click", ({ target }) => {
    const button = target.closest?.("button.copy-code");
    if (button) copy(button.closest("figure.code").querySelector("code").textContent, button);
  });
}

/** Copy, and say so on the button for a while. */
async function copy(text, button) {
  button.textContent = (await copyText(text)) ? "Copied" : "Press Ctrl+C";
  setTimeout(() => (button.textContent = WORD), CONFIRMATION_MS);
}

/** The clipboard exists on https and localhost only; elsewhere a selection does the same. */
export async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "visually-hidden";
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  return copied;
}
