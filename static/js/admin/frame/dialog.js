/** Dialogs that ask before something is done, and why: as the audit log and those concerned will read it. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { Dialog } from "../../widgets/dialog.js";
import { html } from "../../widgets/html.js";

/**
 * Show one.
 * @param {import("./console.js").Console} admin
 * @param {object} question
 * @param {string} question.title
 * @param {string} [question.text] what will happen
 * @param {string} question.deed the word on the button
 * @param {boolean} [question.danger]
 * @param {{label: string, isNeeded?: boolean, max?: number}} [question.reason] the field for it
 * @param {string} [question.check] the text of a box to tick
 * @param {(answer: {reason: string, isChecked: boolean}) => void} question.act
 */
export function ask(admin, question) {
  admin.dialog.value = () => html`<${Question} admin=${admin} question=${question} />`;
}

function Question({ admin, question }) {
  const { title, text, deed, danger, reason: field, check, act } = question;
  const reason = useSignal("");
  const isChecked = useSignal(false);
  const first = useRef(null);
  useEffect(() => first.current?.focus(), []); // who is asked why can say so at once
  const leave = () => (admin.dialog.value = null);
  const isReady = !field?.isNeeded || reason.value.trim() !== "";
  const submit = (event) => {
    event.preventDefault();
    if (!isReady) return;
    leave();
    act({ reason: reason.value.trim(), isChecked: isChecked.value });
  };
  return html`<${Dialog} title=${title} kind="ask" onClose=${leave}>
    <form class="ask-form" onSubmit=${submit}>
      ${text && html`<p class="muted">${text}</p>`}
      ${field &&
      html`<label class="field">
        <span>${field.label}</span>
        <input ref=${first} maxlength=${field.max ?? 200} required=${Boolean(field.isNeeded)} value=${reason.value} autocomplete="off"
          onInput=${(event) => (reason.value = event.target.value)} />
      </label>`}
      ${check &&
      html`<label class="check">
        <input type="checkbox" checked=${isChecked.value} onChange=${(event) => (isChecked.value = event.target.checked)} />
        <span>${check}</span>
      </label>`}
      <div class="dialog-foot">
        <button type="button" class="plain" onClick=${leave}>Cancel</button>
        <button type="submit" class=${danger ? "primary danger" : "primary"} disabled=${!isReady}>${deed}</button>
      </div>
    </form>
  <//>`;
}
