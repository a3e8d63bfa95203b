/** What the keyboard can do. */

import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";

const SHORTCUTS = [
  [["Enter"], "Send the message"],
  [["Shift", "Enter"], "Begin a new line"],
  [["Enter"], "While an answer is written: send after it"],
  [["Ctrl", "Enter"], "Send in place of the answer that is being written"],
  [["Alt", "Enter"], "Steer the answer: it goes on with the message"],
  [["Esc"], "Stop the answer"],
  [["Ctrl", "K"], "Go to a chat, or do something"],
  [["Ctrl", "Shift", "O"], "New chat"],
  [["Ctrl", "Z"], "Undo a deletion"],
  [["Ctrl", ","], "Settings of the chat"],
  [["Ctrl", "/"], "This list"],
];

export function Shortcuts({ onClose }) {
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${onClose}>
    <dl class="pairs shortcuts">
      ${SHORTCUTS.map(
        ([keys, what]) => html`<dt>${what}</dt><dd>${keys.map((key) => html`<kbd>${key}</kbd>`)}</dd>`,
      )}
    </dl>
  <//>`;
}
