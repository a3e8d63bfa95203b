/** The dialog that shows a secret this once. */

import { Dialog } from "../../widgets/dialog.js";
import { html } from "../../widgets/html.js";

/** A secret that nobody can read again. @param {import("../frame/console.js").Console} admin */
export function showOnce(admin, { title, text, secret }) {
  admin.dialog.value = () => html`<${Secret} admin=${admin} title=${title} text=${text} secret=${secret} />`;
}

function Secret({ admin, title, text, secret }) {
  const leave = () => (admin.dialog.value = null);
  const close = (event) => event.target.closest("dialog").close(); // which gives the focus back
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
        <button type="button" class="plain" onClick=${close}>Done</button>
        <button type="button" class="primary" onClick=${copy}>Copy</button>
      </div>
    </div>
  <//>`;
}
