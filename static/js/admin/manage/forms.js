/** Dialogs with fields, and the one that shows a secret this once. */

import { useSignal } from "@preact/signals";

import { Dialog } from "../../widgets/dialog.js";
import { html } from "../../widgets/html.js";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {"text" | "number" | "choice" | "check"} [kind]
 * @property {string | number | boolean} [value] as it is now
 * @property {[string, string][]} [choices]
 * @property {string} [hint] @property {boolean} [isNeeded] @property {number} [max] characters
 */

/**
 * Ask for a few values, then do something with them.
 * @param {import("../frame/console.js").Console} admin
 * @param {{title: string, text?: string, deed: string, danger?: boolean, fields: Field[], act: (values: object) => void}} form
 */
export function fill(admin, form) {
  admin.dialog.value = () => html`<${Form} admin=${admin} form=${form} />`;
}

function Form({ admin, form }) {
  const { title, text, deed, danger, fields, act } = form;
  const values = useSignal(Object.fromEntries(fields.map(({ name, kind, value }) => [name, value ?? (kind === "check" ? false : "")])));
  const leave = () => (admin.dialog.value = null);
  const set = (name, value) => (values.value = { ...values.value, [name]: value });
  const isReady = fields.every(({ name, isNeeded }) => !isNeeded || String(values.value[name]).trim() !== "");
  const submit = (event) => {
    event.preventDefault();
    if (!isReady) return;
    leave();
    act(values.value);
  };
  return html`<${Dialog} title=${title} kind="ask" onClose=${leave}>
    <form class="ask-form" onSubmit=${submit}>
      ${text && html`<p class="muted">${text}</p>`}
      ${fields.map((field) => html`<${Input} key=${field.name} field=${field} value=${values.value[field.name]} onSet=${set} />`)}
      <div class="dialog-foot">
        <button type="button" class="plain" onClick=${leave}>Cancel</button>
        <button type="submit" class=${danger ? "primary danger" : "primary"} disabled=${!isReady}>${deed}</button>
      </div>
    </form>
  <//>`;
}

function Input({ field, value, onSet }) {
  const { name, label, kind = "text", choices, hint, max, isNeeded } = field;
  if (kind === "check") {
    return html`<label class="check">
      <input type="checkbox" name=${name} checked=${value} onChange=${(event) => onSet(name, event.target.checked)} />
      <span>${label}</span>
    </label>`;
  }
  if (kind === "choice") {
    return html`<label class="field">
      <span>${label}</span>
      <select name=${name} value=${value} onChange=${(event) => onSet(name, event.target.value)}>
        ${choices.map(([choice, word]) => html`<option key=${choice} value=${choice} selected=${choice === value}>${word}</option>`)}
      </select>
    </label>`;
  }
  return html`<label class="field">
    <span>${label}</span>
    <input name=${name} type=${kind} min=${kind === "number" ? 0 : null} step=${kind === "number" ? 1 : null} maxlength=${max ?? 100}
      required=${Boolean(isNeeded)} placeholder=${hint ?? ""} value=${value} autocomplete="off" spellcheck="false"
      onInput=${(event) => onSet(name, event.target.value)} />
  </label>`;
}

/** A secret that nobody can read again. @param {import("../frame/console.js").Console} admin */
export function showOnce(admin, { title, text, secret }) {
  admin.dialog.value = () => html`<${Secret} admin=${admin} title=${title} text=${text} secret=${secret} />`;
}

function Secret({ admin, title, text, secret }) {
  const leave = () => (admin.dialog.value = null);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(secret);
      admin.say("Copied.");
    } catch {
      admin.say("This browser does not let the page copy; select the text instead.", { bad: true });
    }
  };
  return html`<${Dialog} title=${title} kind="ask" onClose=${leave}>
    <div class="ask-form">
      <p class="muted">${text}</p>
      <input class="secret" readonly value=${secret} aria-label=${title} onFocus=${(event) => event.target.select()} />
      <div class="dialog-foot">
        <button type="button" class="plain" onClick=${leave}>Done</button>
        <button type="button" class="primary" onClick=${copy}>Copy</button>
      </div>
    </div>
  <//>`;
}

/** What stands in a field of a number that may be missing: "" is null. */
export const numberOf = (text) => (String(text).trim() === "" ? null : Number(text));
