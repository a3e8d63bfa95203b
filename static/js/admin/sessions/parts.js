/** What the list and the drawer share. */

import { html } from "../../widgets/html.js";
import { titleText } from "../frame/words.js";

export const STATES = {
  in_progress: "answering",
  queued: "waiting",
  stopping: "stopping",
  idle: "idle",
  paused: "paused",
};

export function State({ state: sessions, row }) {
  const state = sessions.stateOf(row);
  return html`<span class=${`state ${state}`}>
    ${STATES[state] ?? state}${row.queued > 0 ? ` +${row.queued}` : ""}${row.locked ? " · locked" : ""}
  </span>`;
}

export const titleOf = ({ title }) => titleText(title);
