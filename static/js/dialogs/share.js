/** The share link of a chat: make it, bring it up to date, copy it, end it. */

import { useSignal } from "@preact/signals";

import * as api from "../connection/api.js";
import { copyText } from "../widgets/copy.js";
import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";

export function Share({ page, sessionId, onClose }) {
  const link = useSignal("");
  const said = useSignal("");
  const tell = async (act) => {
    try {
      await act();
    } catch (error) {
      said.value = page.refusalText(error);
    }
  };
  const make = () => tell(async () => {
    link.value = await api.share(sessionId);
    said.value = "";
  });
  const copy = async () => (said.value = (await copyText(link.value)) ? "Copied" : "Press Ctrl+C to copy");
  const end = () => tell(async () => {
    await api.unshare(sessionId);
    page.toasts.put("The link works no more");
    onClose();
  });
  return html`<${Dialog} title="Share this chat" onClose=${onClose}>
    <p>Everybody who has the link can read this chat as it is when you make the link, and nothing that comes later.
      Make it again to show more: the address stays.</p>
    ${link.value
      ? html`<div class="link-row">
            <input readonly aria-label="Link" value=${link.value} onFocus=${(event) => event.currentTarget.select()} />
            <button type="button" class="primary" onClick=${copy}>Copy</button>
          </div>
          <button type="button" class="plain danger" onClick=${end}>Stop sharing</button>`
      : html`<div class="dialog-foot"><button type="button" class="primary" onClick=${make}>Make the link</button></div>`}
    <p class="said" role="status">${said.value}</p>
  <//>`;
}
