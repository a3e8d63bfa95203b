/**
 * A question that is being edited: a field in the place of its bubble. What was typed is kept until it is
 * sent or given up, also over a reload and while the question is not on screen.
 */

const PREFIX = "parley.edit.";

export class Edits {
  #store;

  /** @param {import("../connection/storage.js").Store} store */
  constructor(store) {
    this.#store = store;
  }

  /** What was typed in place of this message, or null. */
  textOf(messageId) {
    return this.#store.get(PREFIX + messageId);
  }

  keep(messageId, text) {
    this.#store.set(PREFIX + messageId, text);
  }

  drop(messageId) {
    this.#store.remove(PREFIX + messageId);
  }
}

/**
 * @param {object} parts
 * @param {string} parts.text
 * @param {(text: string) => void} parts.oninput
 * @param {(text: string) => boolean} parts.onsend returns whether it went out
 * @param {() => void} parts.oncancel
 * @returns {HTMLFormElement}
 */
export function editForm({ text, oninput, onsend, oncancel }) {
  const form = document.createElement("form");
  form.className = "edit";
  const field = document.createElement("textarea");
  field.ariaLabel = "Edit your message";
  field.dir = "auto";
  field.value = text;
  field.rows = Math.min(12, text.split("\n").length + 1); // for browsers without `field-sizing`
  const send = button("primary", "Send", "submit");
  const cancel = button("plain", "Cancel", "button");
  const buttons = document.createElement("div");
  buttons.className = "edit-buttons";
  buttons.append(cancel, send);
  form.append(field, buttons);

  field.addEventListener("input", () => {
    send.disabled = field.value.trim() === "";
    oninput(field.value);
  });
  field.addEventListener("keydown", (event) => {
    const newline = event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || newline) return;
    event.preventDefault();
    form.requestSubmit(send);
  });
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing) return;
    event.stopPropagation(); // it would also stop the answer
    oncancel();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    onsend(field.value);
  });
  cancel.addEventListener("click", oncancel);
  return form;
}

function button(className, word, type) {
  return Object.assign(document.createElement("button"), { className, type, textContent: word });
}
