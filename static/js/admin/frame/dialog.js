/**
 * Dialogs that ask before something is done: why, as the audit log and those concerned will read it, and with which
 * values. Each stays until that is done: what was written is there when the server is.
 */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { Dialog } from "../../widgets/dialog.js";
import { html } from "../../widgets/html.js";

/** The scope for how workers and engines run. */
export const OPERATE = "admin:operate";
/** The scope for what users wrote, and so for being logged in as one of them. */
export const TRANSCRIPTS = "admin:transcripts";
/** The field of a reason that nobody but admins reads. */
export const WHY = { label: "Why, for the audit log" };

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string | object} label
 * @property {"text" | "number" | "choice" | "check"} [kind]
 * @property {string | number | boolean} [value] as it is now
 * @property {[string, string][]} [choices]
 * @property {string} [hint] @property {boolean} [isNeeded] @property {number} [max] characters
 * @property {Function} [View] draws a field of another kind, from `{field, value, onSet}`
 */

/**
 * Ask for a few values, then do something with them.
 * @param {import("./console.js").Console} admin
 * @param {object} form
 * @param {string} form.title
 * @param {string | object} [form.text] what will happen
 * @param {string} form.deed the word on the button
 * @param {boolean} [form.danger]
 * @param {Field[]} form.fields
 * @param {(values: object) => any} form.act returns what came of it, in the end; null: it was not done
 * @param {(answer: any) => void} [form.then] what follows when the dialog has gone
 */
export function fill(admin, form) {
  admin.problem.value = "";
  admin.dialog.value = () => html`<${Form} admin=${admin} form=${form} />`;
}

/**
 * Ask whether, and perhaps why.
 * @param {import("./console.js").Console} admin
 * @param {object} question as a form has it, but for the fields
 * @param {{label: string, isNeeded?: boolean, max?: number}} [question.reason] the field for it
 * @param {string} [question.check] the text of a box to tick
 */
export function ask(admin, { reason, check, ...question }) {
  const fields = [
    reason && { name: "reason", max: 200, ...reason },
    check && { name: "isChecked", label: check, kind: "check" },
  ].filter(Boolean);
  fill(admin, { ...question, fields });
}

function Form({ admin, form }) {
  const { title, text, deed, danger, fields, act, then } = form;
  const values = useSignal(Object.fromEntries(fields.map(({ name, kind, value }) => [name, value ?? (kind === "check" ? false : "")])));
  const isBusy = useSignal(false);
  const mine = useRef(admin.dialog.peek());
  const element = useRef(null);
  useEffect(() => element.current.querySelector("input, select")?.focus(), []); // who is asked why can say so at once
  const close = () => element.current?.closest("dialog").close(); // which gives the focus back
  const leave = () => admin.dialog.value === mine.current && (admin.dialog.value = null);
  const set = (name, value) => (values.value = { ...values.value, [name]: value });
  const isReady = fields.every(({ name, isNeeded }) => !isNeeded || isGiven(values.value[name]));
  const submit = async (event) => {
    event.preventDefault();
    if (!isReady || isBusy.value) return;
    admin.problem.value = "";
    isBusy.value = true;
    const answer = await act(trimmed(values.value));
    isBusy.value = false;
    if (answer === null) return;
    close();
    then?.(answer);
  };
  return html`<${Dialog} title=${title} kind="ask" onClose=${leave}>
    <form class="ask-form" ref=${element} onSubmit=${submit}>
      ${text && html`<p class="muted">${text}</p>`}
      ${fields.map((field) => html`<${Input} key=${field.name} field=${field} value=${values.value[field.name]} onSet=${set} />`)}
      <p class="problem" role="alert">${admin.problem.value}</p>
      <div class="dialog-foot">
        <button type="button" class="plain" onClick=${close}>Cancel</button>
        <button type="submit" class=${danger ? "primary danger" : "primary"} disabled=${!isReady}
          aria-disabled=${isBusy.value ? "true" : null}>${deed}</button>
      </div>
    </form>
  <//>`;
}

const isGiven = (value) => (typeof value === "boolean" ? value : String(value).trim() !== "");
const trimmed = (values) =>
  Object.fromEntries(Object.entries(values).map(([name, value]) => [name, typeof value === "string" ? value.trim() : value]));

function Input({ field, value, onSet }) {
  const { name, label, kind = "text", choices, hint, max, isNeeded, View } = field;
  if (View) return html`<${View} field=${field} value=${value} onSet=${onSet} />`;
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
