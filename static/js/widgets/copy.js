/** Quiet buttons with a word on them, and copying. */

const CONFIRMATION_MS = 1600;

export function wordButton(word, label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "word-button";
  button.textContent = word;
  button.ariaLabel = label;
  return button;
}

/** Copy, and say so on the button for a while. */
export async function copyFrom(button, text) {
  const word = button.dataset.word ?? button.textContent;
  button.dataset.word = word;
  button.textContent = (await copyText(text)) ? "Copied" : "Press Ctrl+C";
  dispatchEvent(new CustomEvent("parley:said", { detail: button.textContent })); // the button's label stays
  setTimeout(() => (button.textContent = word), CONFIRMATION_MS);
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
