/** The share link of a chat: make it, bring it up to date, copy it, end it. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";

import * as api from "../connection/api.js";
import { copyText } from "../widgets/copy.js";
import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";

export function Share({ page, sessionId, onClose }) {
  const link = useSignal("");
  const said = useSignal("Making the link…");
  useEffect(() => {
    api.share(sessionId).then(
      (address) => {
        link.value = address;
        said.value = "";
      },
      (error) => (said.value = page.refusalText(error)),
    );
  }, []);
  const copy = async () => (said.value = (await copyText(link.value)) ? "Copied" : "Press Ctrl+C to copy");
  const end = async () => {
    try {
      await api.unshare(sessionId);
      page.toast("The link works no more");
      onClose();
    } catch (error) {
      said.value = page.refusalText(error);
    }
  };
  return html`<${Dialog} title="Share this chat" onClose=${onClose}>
    <p>Whoever has the link can read this chat as it is now, and nothing that comes later.</p>
    ${link.value &&
    html`<div class="link-row">
        <input readonly aria-label="Link" value=${link.value} onFocus=${(event) => event.currentTarget.select()} />
        <button type="button" class="primary" onClick=${copy}>Copy</button>
      </div>
      <button type="button" class="plain danger" onClick=${end}>Stop sharing</button>`}
    <p class="said" role="status">${said.value}</p>
  <//>`;
}
