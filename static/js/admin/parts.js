/** What the list and the drawer of the admin page share. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { html } from "../widgets/html.js";

export const STATES = {
  in_progress: "answering",
  queued: "waiting",
  stopping: "stopping",
  idle: "idle",
  paused: "paused",
};

export function State({ page, row }) {
  const state = page.stateOf(row);
  return html`<span class=${`state ${state}`}>
    ${STATES[state] ?? state}${row.queued > 0 ? ` +${row.queued}` : ""}${row.locked ? " · locked" : ""}
  </span>`;
}

/** A dialog that asks why, as the audit log and the viewers will read it. */
export function EvictDialog({ page, id }) {
  const dialog = useRef(null);
  const reason = useSignal("");
  const lock = useSignal(false);
  useEffect(() => dialog.current.showModal(), []);
  const leave = () => (page.evicting.value = null);
  const submit = (event) => {
    event.preventDefault();
    if (reason.value.trim()) page.evict(id, reason.value.trim(), lock.value);
  };
  return html`<dialog class="evict" ref=${dialog} onClose=${leave} aria-labelledby="evict-title">
    <form onSubmit=${submit}>
      <h2 id="evict-title">Evict everybody from this chat</h2>
      <p class="muted">Its answers end, and the connections of all its viewers are closed.</p>
      <label class="field">
        <span>Reason, shown to them</span>
        <input maxlength="120" required value=${reason.value} onInput=${(event) => (reason.value = event.target.value)} />
      </label>
      <label class="check">
        <input type="checkbox" checked=${lock.value} onChange=${(event) => (lock.value = event.target.checked)} />
        <span>Lock the chat: no new answers until it is unlocked</span>
      </label>
      <div class="dialog-foot">
        <button type="button" class="plain" onClick=${leave}>Cancel</button>
        <button type="submit" class="primary danger" disabled=${!reason.value.trim()}>Evict</button>
      </div>
    </form>
  </dialog>`;
}

export function titleOf(row) {
  if (row.title === null) return "Title hidden";
  return row.title || "Untitled";
}
