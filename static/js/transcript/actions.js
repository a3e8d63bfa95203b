/** The buttons below a message, one for each of the page's actions that fits it. */

/**
 * @typedef {object} Action something that a user does with a message
 * @property {string} word on the button
 * @property {{user?: string, assistant?: string}} labels what the button does, for those who cannot
 *   see where it stands; messages of a role without one have no button
 * @property {(bubble: {message: object, text: string}, button: HTMLButtonElement) => void} act with
 *   the message and what is painted of it
 */

/**
 * @param {Action[]} actions in the order of their buttons
 * @param {"user" | "assistant"} role of the message in `bubble`
 */
export function actionRow(actions, role, bubble) {
  const row = document.createElement("div");
  row.className = "actions";
  for (const { word, labels, act } of actions) {
    if (!labels[role]) continue;
    const button = wordButton(word, labels[role]);
    button.addEventListener("click", () => act(bubble, button));
    row.append(button);
  }
  return row;
}

export function wordButton(word, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "word-button";
  button.textContent = word;
  button.ariaLabel = label;
  return button;
}
