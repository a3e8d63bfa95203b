/** The messages that wait to be asked, above the field: each can be sent now, edited, moved and withdrawn. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { errorText } from "../connection/protocol.js";
import { html } from "../widgets/html.js";
import { Close, Pencil, Steer, Up } from "../widgets/icons.js";

const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });

export function QueuePlace({ page }) {
  page.tick.value;
  const edited = useSignal(null); // the item whose words are in a field, and those
  const queue = page.chat.current?.queue;
  const { unqueued } = page.chat;
  if (!queue || queue.items.length + unqueued.length === 0) return null;
  const edit = async (item) => {
    const text = await page.queuedText(item);
    if (text !== null) edited.value = { id: item.id, text };
  };
  return html`<section class="queue" aria-label="Messages that wait">
    <${State} page=${page} queue=${queue} />
    <ol>
      ${queue.items.map((item, place) =>
        item.id === edited.value?.id
          ? html`<${Edit} key=${item.id} page=${page} edited=${edited} />`
          : html`<${Item} key=${item.id} page=${page} item=${item} place=${place} onEdit=${() => edit(item)} />`,
      )}
      ${unqueued.map(({ key, text }) => html`<li key=${key}><p class="words" dir="auto">${text}</p><small>Sending…</small></li>`)}
    </ol>
  </section>`;
}

/** Whether they begin by themselves. */
function State({ page, queue }) {
  if (!queue.paused) return html`<p class="state">Next, after this answer</p>`;
  return html`<p class="state">
    Paused, because the answer was stopped
    <button type="button" class="word-button" onClick=${() => page.chat.changeQueue("queue.send")}>Go on</button>
  </p>`;
}

function Item({ page, item, place, onEdit }) {
  const { id, input, created_at: at, error, now } = item;
  const number = place + 1;
  const remove = () => {
    page.chat.changeQueue("queue.remove", { item_id: id });
    document.querySelector(".field textarea").focus(); // the button goes
  };
  const button = (label, Icon, onClick, disabled = false) =>
    html`<button type="button" class="quiet" aria-label=${`${label} message ${number}`} title=${label}
      disabled=${disabled} onClick=${onClick}><${Icon} /></button>`;
  return html`<li>
    <span class="number" aria-hidden="true">${number}</span>
    <p class="words" dir="auto" title=${input}>${input ?? "A long message"}</p>
    ${now
      ? html`<small>Sending…</small>`
      : html`<time datetime=${new Date(at).toISOString()}>${TIME.format(at)}</time>`}
    <span class="deeds">
      ${button("Send now", Steer, () => page.chat.changeQueue("queue.send", { item_id: id }))}
      ${button("Edit", Pencil, onEdit)}
      ${button("Move up", Up, () => page.chat.changeQueue("queue.update", { item_id: id, place: place - 1 }), place === 0)}
      ${button("Withdraw", Close, remove)}
    </span>
    ${error && html`<p class="why" role="alert">${errorText(error)}</p>`}
  </li>`;
}

/** Its words in a field. Enter keeps them, Esc leaves them as they were. */
function Edit({ page, edited }) {
  const field = useRef(null);
  const { id, text } = edited.value;
  useEffect(() => {
    field.current.focus();
    field.current.form.scrollIntoView({ block: "nearest" });
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const done = () => {
    edited.value = null;
    document.querySelector(".field textarea").focus();
  };
  const save = () => {
    const input = field.current.value;
    if (input.trim() === "") return;
    if (input !== text) page.chat.changeQueue("queue.update", { item_id: id, input });
    done();
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.preventDefault(); // it stops no answer
      done();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    save();
  };
  return html`<li>
    <form class="edit" onSubmit=${(event) => (event.preventDefault(), save())}>
      <textarea ref=${field} rows="2" dir="auto" aria-label="Edit the message that waits" onKeyDown=${onKeyDown}>${text}</textarea>
      <div class="edit-buttons">
        <button type="button" class="plain" onClick=${done}>Cancel</button>
        <button type="submit" class="primary">Save</button>
      </div>
    </form>
  </li>`;
}
