/** The messages that wait to be asked, above the field: each can be sent now, edited, moved and withdrawn. */

import { useEffect, useRef } from "preact/hooks";

import { errorText } from "../connection/protocol.js";
import { html } from "../widgets/html.js";
import { Close, Pencil, Steer, Up } from "../widgets/icons.js";

const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

export function QueuePlace({ page }) {
  page.tick.value;
  const section = useRef(null);
  const wanted = useRef(null); // where the keyboard is to go on when the list has changed under it
  const queue = page.chat.current?.queue;
  const { unqueued } = page.chat;
  useEffect(() => page.settleQueueEdits());
  useEffect(() => {
    if (wanted.current === null || document.activeElement !== document.body) return;
    const buttons = section.current?.querySelectorAll(`[data-item="${wanted.current}"] button:not(:disabled)`) ?? [];
    (buttons[2] ?? buttons[1] ?? composerField()).focus();
    wanted.current = null;
  });
  if (!queue || queue.items.length + unqueued.length === 0) return null;
  return html`<section class="queue" aria-label="Messages that wait" ref=${section}>
    <${State} page=${page} queue=${queue} />
    <ol>
      ${queue.items.map((item, place) => {
        const text = page.queueEdits.textOf(item);
        return text === null
          ? html`<${Item} key=${item.id} page=${page} item=${item} place=${place} wanted=${wanted} />`
          : html`<${Edit} key=${item.id} page=${page} item=${item} text=${text} />`;
      })}
      ${unqueued.map(({ key, text }) => html`<li key=${key}><p class="words" dir="auto">${text}</p><small>Sending…</small></li>`)}
    </ol>
  </section>`;
}

/** Whether they begin by themselves. */
function State({ page, queue }) {
  if (queue.paused) {
    const goOn = () => (page.chat.changeQueue("queue.send"), composerField().focus());
    return html`<p class="state">
      Paused until you go on
      <button type="button" class="word-button" onClick=${goOn}>Go on</button>
    </p>`;
  }
  if (queue.items[0]?.error) return html`<p class="state">Waiting until the first is changed or withdrawn</p>`;
  return html`<p class="state">${page.chat.activity() === "idle" ? "Next" : "Next, after this answer"}</p>`;
}

function Item({ page, item, place, wanted }) {
  const { id, input, beginning, created_at: at, error, now } = item;
  const number = place + 1;
  const send = () => (page.chat.changeQueue("queue.send", { item_id: id }), composerField().focus());
  const withdraw = () => (page.chat.changeQueue("queue.remove", { item_id: id }), composerField().focus());
  const moveUp = () => {
    wanted.current = id;
    page.chat.changeQueue("queue.update", { item_id: id, place: place - 1 });
  };
  const button = (label, Icon, onClick, disabled = false) =>
    html`<button type="button" class="quiet" aria-label=${`${label} message ${number}`} title=${label}
      disabled=${disabled} onClick=${onClick}><${Icon} /></button>`;
  return html`<li data-item=${id}>
    <span class="number" aria-hidden="true">${number}</span>
    <p class="words" dir="auto" title=${input}>${input ?? `${beginning}…`}</p>
    ${now
      ? html`<small>Sending…</small>`
      : html`<time datetime=${new Date(at).toISOString()}>${TIME.format(at)}</time>`}
    <span class="deeds">
      ${button("Send now", Steer, send)}
      ${button("Edit", Pencil, () => page.editQueued(item))}
      ${button("Move up", Up, moveUp, place === 0)}
      ${button("Withdraw", Close, withdraw)}
    </span>
    ${error && html`<p class="why" role="alert">${reasonOf(error)}</p>`}
  </li>`;
}

/** Its words in a field. Enter keeps them, Esc leaves them as they were. */
function Edit({ page, item, text }) {
  const field = useRef(null);
  useEffect(() => {
    field.current.focus();
    field.current.form.scrollIntoView({ block: "nearest" });
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const close = () => {
    page.tick.value += 1;
    composerField().focus();
  };
  const cancel = () => (page.queueEdits.drop(item), close());
  const save = () => {
    const { value } = field.current;
    if (value === item.input) cancel();
    else if (page.saveQueued(item, value)) close();
  };
  const onKeyDown = (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape") {
      event.preventDefault(); // it stops no answer
      cancel();
    }
    const newline = event.shiftKey || matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || newline) return;
    event.preventDefault();
    save();
  };
  const onInput = (event) => page.queueEdits.keep(page.chat.currentId, item, event.currentTarget.value);
  return html`<li>
    <form class="edit" onSubmit=${(event) => (event.preventDefault(), save())}>
      <textarea ref=${field} rows="2" dir="auto" aria-label="Edit the message that waits" defaultValue=${text}
        onInput=${onInput} onKeyDown=${onKeyDown}></textarea>
      <div class="edit-buttons">
        <button type="button" class="plain" onClick=${cancel}>Cancel</button>
        <button type="submit" class="primary">Save</button>
      </div>
    </form>
  </li>`;
}

const composerField = () => document.querySelector(".composer textarea");

/** Nobody need send it again: it goes out when it is changed. */
const reasonOf = (error) => errorText(error).replace(/ Send it again.*$/, "");
