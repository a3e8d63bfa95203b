/** Copy buttons. One listener serves them all, because a patched block keeps old nodes for new ones. */

const CONFIRMATION_MS = 1600;

/** @param {string} label what the button copies, for those who cannot see where it stands */
export function copyButton(label) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.ariaLabel = label;
  return button;
}

/**
 * Serve the copy buttons inside `root`.
 * @param {(button: HTMLElement) => string} textFor what a button copies
 */
export function serveCopyButtons(root, textFor) {
  root.addEventListener("click", async ({ target }) => {
    const button = target.closest?.("button.copy");
    if (!button) return;
    const copied = await copyText(textFor(button));
    button.textContent = copied ? "Copied" : "Press Ctrl+C";
    setTimeout(() => (button.textContent = "Copy"), CONFIRMATION_MS);
  });
}

/** The clipboard exists on https and localhost only; elsewhere a selection does the same. */
async function copyText(text) {
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
