/** One session beside the list: who and where, the way of its answers, and what is said, if asked for. */

import { useEffect, useRef } from "preact/hooks";

import { endText, reasonText } from "../../connection/protocol.js";
import { Scroll } from "../../transcript/scroll.js";
import { html } from "../../widgets/html.js";
import { visibleName } from "../../widgets/visible.js";
import { TRANSCRIPTS } from "../frame/dialog.js";
import { Beside, besideUnread } from "../frame/parts.js";
import { hashOf } from "../frame/place.js";
import { count, duration, shortReplica } from "../frame/words.js";
import { nameOf } from "./columns.js";
import { State, titleOf } from "./parts.js";

const MOMENTS = [
  ["created_at", "asked"],
  ["started_at", "started"],
  ["first_token_at", "first token"],
  ["cancel_at", "stop asked"],
  ["aborted_at", "engine released"],
  ["done_at", "done"],
];

export function Drawer({ admin, state }) {
  const details = state.details.value.value;
  const close = () => state.show(null);
  if (!details) return besideUnread(admin, state.details, close);
  const row = details.session;
  return html`<${Beside} admin=${admin} title=${titleOf(row)} onClose=${close}>
    <${Facts} state=${state} row=${row} viewers=${details.viewers} />
    <${Deeds} state=${state} row=${row} />
    <${Timelines} responses=${details.responses} />
    ${admin.may(TRANSCRIPTS) && html`<${Transcript} state=${state} />`}
  <//>`;
}

function Facts({ state, row, viewers }) {
  const where = Object.entries(viewers).map(([replica, number]) => `${number} on ${shortReplica(replica)}`);
  const facts = [
    ["User", html`<a href=${hashOf("sessions", { show: "all", user: row.user.id })} title=${row.user.id}>${nameOf(row)}</a>`],
    ["State", html`<${State} state=${state} row=${row} />`],
    ["Viewers", where.join(", ") || "none"],
    ["Messages", `${row.message_count}, ${count(row.usage.output_tokens)} tokens answered`],
    row.locked && ["Locked", visibleName(row.locked)],
    ["Session", html`<code>${row.id}</code>`],
  ].filter(Boolean);
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

function Deeds({ state, row }) {
  return html`<div class="deeds">
    <button type="button" class="plain" disabled=${!row.response || row.state === "stopping"}
      onClick=${() => state.stop(row.id)}>Stop</button>
    <button type="button" class="plain danger" onClick=${() => state.evict(row.id)}>Evict …</button>
    ${row.locked && html`<button type="button" class="plain" onClick=${() => state.unlock(row.id)}>Unlock</button>`}
  </div>`;
}

function Timelines({ responses }) {
  if (responses.length === 0) return null;
  return html`<section>
    <h3>Answers of the last minutes</h3>
    ${responses.map((response) => html`<${Timeline} key=${response.id} response=${response} />`)}
  </section>`;
}

function Timeline({ response }) {
  const moments = MOMENTS.filter(([name]) => response.timeline[name] !== undefined);
  const start = response.timeline.created_at;
  const status = response.status.replace("_", " ");
  const why = response.reason && reasonText(response.reason);
  const end = why || (response.stop ? `${status} by ${response.stop.by}` : status);
  return html`<article class="answer">
    <header>
      <span>${end}</span>
      <span class="muted">${response.tokens} tokens · ${shortReplica(response.replica)}${
        response.fence > 1 ? ` · taken over ${response.fence - 1}×` : ""
      }</span>
    </header>
    <ol class="timeline">
      ${moments.map(
        ([name, label]) => html`<li key=${name} class=${name}>
          <span>${label}</span><span class="number">${offset(response.timeline[name] - start)}</span>
        </li>`,
      )}
    </ol>
  </article>`;
}

function Transcript({ state }) {
  const watch = state.watch.value;
  return html`<section class="transcript">
    <h3>Conversation</h3>
    ${watch
      ? html`<${Messages} watch=${watch} />`
      : html`<p class="muted">Reading along is written to the audit log, with your name and address.</p>
          <button type="button" class="plain" onClick=${() => state.startWatch()}>Watch live</button>`}
  </section>`;
}

/** Plain text only: what a model or a user wrote is not formatted here. */
function Messages({ watch }) {
  watch.tick.value;
  const log = useRef(null);
  const note = watch.note.value;
  useEffect(() => {
    if (log.current) new Scroll(log.current.closest(".drawer-body"), log.current, () => {});
  }, [note]);
  if (note) return html`<p class="muted" role="status">${note}</p>`;
  return html`<div class="said" role="log" aria-live="off" ref=${log}>
    ${watch.conversation.path.map(
      (message) => html`<div key=${message.id} class=${`said-${message.role}`}>
        <p class="who">${WHO[message.role] ?? "Model"}${
          message.streaming ? " · writing" : after(endText(message.status, message.reason))
        }</p>
        <p class="words" dir="auto">${message.text || (message.streaming ? "…" : "")}</p>
      </div>`,
    )}
  </div>`;
}

const WHO = { user: "User", tool: "Tool", system: "System", developer: "Developer" };

const after = (text) => (text ? ` · ${text.toLowerCase()}` : "");

const offset = (milliseconds) =>
  milliseconds < 1000 ? `+${milliseconds} ms` : milliseconds < 60_000 ? `+${(milliseconds / 1000).toFixed(1)} s` : `+${duration(milliseconds)}`;
