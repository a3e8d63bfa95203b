/** Another answer to the same question, with other settings for this once. */

import { useRef } from "preact/hooks";

import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";
import { SettingsFields, settingsOf } from "./settings-form.js";

export function Again({ page, message, onClose }) {
  const form = useRef(null);
  const ask = (event) => {
    event.preventDefault();
    onClose();
    page.ask({ regenerate_of: message.id, settings: { seed: null, ...settingsOf(form.current) } });
  };
  const { seed: _, ...settings } = message.settings ?? page.settings.current; // the same one gives the same answer
  return html`<${Dialog} title="Again with other settings" kind="side" onClose=${onClose}>
    <form ref=${form} onSubmit=${ask}>
      <${SettingsFields} settings=${settings} models=${page.settings.models.value} />
      <div class="dialog-foot"><button type="submit" class="primary">Answer again</button></div>
    </form>
  <//>`;
}
