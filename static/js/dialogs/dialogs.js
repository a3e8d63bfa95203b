/** The dialog that is open, if one is. */

import { html } from "../widgets/html.js";
import { Again } from "./again.js";
import { Details } from "./details.js";
import { Palette } from "./palette.js";
import { ChatSettings } from "./settings.js";
import { Share } from "./share.js";
import { Shortcuts } from "./shortcuts.js";

const KINDS = {
  again: Again,
  details: Details,
  palette: Palette,
  settings: ChatSettings,
  share: Share,
  shortcuts: Shortcuts,
};

export function Dialogs({ page }) {
  const open = page.dialog.value;
  if (!open) return null;
  const close = () => (page.dialog.value = null);
  return html`<${KINDS[open.kind]} key=${open.kind} page=${page} onClose=${close} ...${open} />`;
}
