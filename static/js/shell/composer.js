/** Where a message is written. The button sends, and while an answer is being written it stops it. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { errorText } from "../connection/protocol.js";
import { html } from "../widgets/html.js";
import { Send, Stop } from "../widgets/icons.js";

const BUSY_TITLE = "Send after this answer (Enter), in its place (Ctrl+Enter), or steer it (Alt+Enter)";
const GROWS_BY_ITSELF = CSS.supports("field-sizing", "content");

export function Composer({ page }) {
  page.tick.value;
  const field = useRef(null);
  const sessionId = page.chat.currentId;
  const activity = page.chat.activity();
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) field.current.focus(); // on a phone it would open the keyboard
  }, [sessionId]);
  useEffect(() => grow(field.current), [page.drafts.text.value]);

  const send = (how) => {
    if (page.say(field.current.value, how)) field.current.focus();
  };
  const onKeyDown = (event) => {
    const newline = event.shiftKey || event.isComposing || matchMedia("(pointer: coarse)").matches;
    if (event.key !== "Enter" || newline) return;
    event.preventDefault();
    send({ replaces: event.ctrlKey || event.metaKey, steers: event.altKey });
  };
  return html`<form class="composer" onSubmit=${(event) => (event.preventDefault(), send())}>
    <${Closed} page=${page} />
    <${Refusal} refusal=${page.drafts.refusal} />
    <div class="field">
      <textarea ref=${field} rows="1" dir="auto" aria-label="Message" placeholder="Message Parley"
        value=${page.drafts.text.value} onInput=${(event) => page.drafts.set(event.currentTarget.value)}
        onKeyDown=${onKeyDown}></textarea>
      <${Action} page=${page} activity=${activity} />
    </div>
  </form>`;
}

/** Send, and while an answer is being written Stop; a message that is sent then waits for its end. */
function Action({ page, activity }) {
  const isIdle = activity === "idle";
  const isEmpty = page.drafts.text.value.trim() === "";
  const title = isIdle ? "Send (Enter)" : BUSY_TITLE;
  const stopping = activity === "stopping";
  return html`
    ${!isIdle &&
    html`<button type="button" class="action stop" aria-label=${stopping ? "Stopping…" : "Stop"}
      title=${stopping ? "Stopping…" : "Stop (Esc)"} disabled=${stopping} onClick=${() => page.stop()}><${Stop} /></button>`}
    ${(isIdle || (!isEmpty && page.chat.currentId !== null)) &&
    html`<button type="submit" class="action" aria-label=${isIdle ? "Send" : "Send after this answer"} title=${title}
      disabled=${isEmpty}><${Send} /></button>`}
  `;
}

/** An admin has closed the chat on screen: it is not watched until somebody wants to. */
function Closed({ page }) {
  const { eviction } = page.chat;
  if (!eviction) return null;
  return html`<p class="refusal" role="alert">
    An administrator closed this chat${eviction.reason ? `: ${eviction.reason}` : "."}
    <button type="button" onClick=${() => page.chat.reopen()}>Open it again</button>
  </p>`;
}

/** Why the last message came back, counting down where the server said how long to wait. */
function Refusal({ refusal }) {
  const now = useSignal(Date.now());
  useEffect(() => {
    if (!refusal) return;
    now.value = Date.now();
    const timer = setInterval(() => (now.value = Date.now()), 500);
    return () => clearInterval(timer);
  }, [refusal?.until]);
  if (!refusal) return null;
  const left = Math.max(0, refusal.until - now.value);
  return html`<p class="refusal" role="alert">${errorText(refusal.error, left)}</p>`;
}

/** Set the height for browsers without `field-sizing`; the stylesheet bounds it. */
function grow(field) {
  if (GROWS_BY_ITSELF) return;
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}
