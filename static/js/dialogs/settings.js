/** The settings of the chat: for all its answers from now on, in all tabs. */

import { useRef } from "preact/hooks";

import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";
import { SettingsFields, settingsOf } from "./settings-form.js";

export function ChatSettings({ page, onClose }) {
  const form = useRef(null);
  const save = (event) => {
    event.preventDefault();
    page.saveSettings(settingsOf(form.current));
    onClose();
  };
  const title = page.chat.currentId === null ? "Settings of new chats" : "Settings of this chat";
  return html`<${Dialog} title=${title} kind="side" onClose=${onClose}>
    <form ref=${form} onSubmit=${save}>
      <${SettingsFields} settings=${page.settings} models=${page.models.value} withSystem />
      <div class="dialog-foot">
        <button type="button" class="plain" onClick=${() => page.saveSettings({}) || onClose()}>Back to the defaults</button>
        <button type="submit" class="primary">Save</button>
      </div>
    </form>
  <//>`;
}
