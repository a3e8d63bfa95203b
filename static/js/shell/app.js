/** The shell: sidebar, header, the place of the transcript, composer, notices. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { Dialogs } from "../dialogs/dialogs.js";
import { html } from "../widgets/html.js";
import { Down, Mark, Menu, Plus, Sliders } from "../widgets/icons.js";
import { Composer } from "./composer.js";
import { ModelName } from "./models.js";
import { AnnouncementPlace, BannerPlace, SignedOut, Spoken, Toasts } from "./notices.js";
import { QueuePlace } from "./queue.js";
import { Sidebar } from "./sidebar.js";

/** The demo model knows one harbour village and nothing else; other models know more. */
const DEMO_SUGGESTIONS = [
  "Tell me a long story",
  "Who lives in the village?",
  "Tell me about Tidewick",
  "Ask me a riddle",
];
const SUGGESTIONS = [
  "Tell me a long story",
  "Explain tides to a child",
  "Plan a quiet weekend",
  "Write a haiku about rain",
];

/** On a narrow page the sidebar is a drawer over the chat. */
const narrow = matchMedia("(width < 48rem)");

export function App({ page }) {
  const isNarrow = useSignal(narrow.matches);
  useEffect(() => {
    const update = () => (isNarrow.value = narrow.matches);
    narrow.addEventListener("change", update);
    return () => narrow.removeEventListener("change", update);
  }, []);
  useShortcuts(page);
  if (page.signedOut.value) return html`<${SignedOut} page=${page} />`;
  const drawerOpen = isNarrow.value && page.drawerOpen.value;
  const skip = () => document.querySelector(".scroller").focus();
  return html`<div class=${drawerOpen ? "app drawer-open" : "app"}>
    <button type="button" class="skip" onClick=${skip}>Skip to the conversation</button>
    <${Sidebar} page=${page} inert=${isNarrow.value && !drawerOpen} />
    <div class="backdrop" onClick=${() => (page.drawerOpen.value = false)}></div>
    <main class="chat" inert=${drawerOpen}>
      <${Header} page=${page} />
      <${AnnouncementPlace} page=${page} />
      <${BannerPlace} page=${page} />
      <div class="stage">
        <${TranscriptPlace} page=${page} />
        <${EmptyState} page=${page} />
        <${Pill} page=${page} />
      </div>
      <${QueuePlace} page=${page} />
      <${Composer} page=${page} />
    </main>
    <${Dialogs} page=${page} />
    <${Toasts} page=${page} />
    <${Spoken} page=${page} />
  </div>`;
}

function Header({ page }) {
  page.tick.value;
  const { chat } = page;
  const title = chat.sessions.get(chat.currentId)?.session.title || "New chat";
  useEffect(() => {
    const asks = chat.asked.length > 0 ? "Consent? · " : ""; // seen in the tab, behind another one
    document.title = chat.currentId === null ? "Parley" : `${asks}${title} · Parley`;
  });
  return html`<header class="top">
    <button type="button" class="quiet open-drawer" aria-label="Open the list of chats" aria-controls="sidebar"
      aria-expanded=${String(page.drawerOpen.value)} onClick=${() => (page.drawerOpen.value = true)}><${Menu} /></button>
    <h1 dir="auto">${title}</h1>
    <${ModelName} page=${page} />
    <button type="button" class="quiet" aria-label="Settings of this chat" title="Settings of this chat (Ctrl+,)"
      aria-haspopup="dialog" onClick=${() => (page.dialog.value = { kind: "settings" })}><${Sliders} /></button>
    <button type="button" class="quiet new-here" aria-label="New chat" onClick=${() => page.show(null)}><${Plus} /></button>
  </header>`;
}

/** Drawn once; from then on its contents belong to the transcript. */
function TranscriptPlace({ page }) {
  const scroller = useRef(null);
  const log = useRef(null);
  const earlier = useRef(null);
  useEffect(() => {
    page.attach(scroller.current, log.current);
    const watcher = new IntersectionObserver(([entry]) => entry.isIntersecting && page.earlier(), {
      root: scroller.current,
      rootMargin: "400px",
    });
    watcher.observe(earlier.current);
    return () => watcher.disconnect();
  }, []);
  page.tick.value;
  return html`<div class="scroller" ref=${scroller} tabindex="0" aria-label="Conversation" role="region">
    <button type="button" class="earlier" ref=${earlier} hidden=${!page.chat.current?.hasMore}
      onClick=${() => page.earlier()}>Earlier messages</button>
    <div class="log" role="log" aria-live="off" aria-label="Messages" ref=${log}></div>
  </div>`;
}

function EmptyState({ page }) {
  page.tick.value;
  const { chat } = page;
  const waiting = chat.currentId !== null && !chat.current?.loaded;
  const empty = (chat.current?.path.length ?? 0) === 0 && chat.sendsOf(chat.currentId).length === 0;
  if (waiting || !empty) return null;
  const model = page.settings.modelName;
  const suggestions = model?.toLowerCase().includes("demo") ? DEMO_SUGGESTIONS : SUGGESTIONS;
  return html`<section class="empty">
    <${Mark} />
    <h2>What shall we talk about?</h2>
    <ul class="chips">
      ${model && suggestions.map(
        (text) => html`<li key=${text}><button type="button" onClick=${() => page.say(text)}>${text}</button></li>`,
      )}
    </ul>
  </section>`;
}

function Pill({ page }) {
  if (!page.away.value) return null;
  return html`<button type="button" class="pill" onClick=${() => page.transcript.scroll.toLatest()}>
    <${Down} />Jump to latest
  </button>`;
}

/** What a key combination does; an act that returns nothing leaves the keys to the browser. */
function shortcut(page, { ctrlKey, metaKey, shiftKey, altKey, code, key, target }) {
  if (!(ctrlKey || metaKey) || altKey || page.dialog.value) return undefined;
  if (shiftKey && code === "KeyO") return () => page.show(null) ?? true;
  if (shiftKey) return undefined;
  if (code === "KeyK") return () => (page.dialog.value = { kind: "palette" });
  if (key === "/") return () => (page.dialog.value = { kind: "shortcuts" });
  if (key === ",") return () => (page.dialog.value = { kind: "settings" });
  const isTyping = target.value !== undefined && target.value !== ""; // the field has its own undo
  if (code === "KeyZ" && !isTyping) return () => page.toasts.undo() || undefined;
  return undefined;
}

function useShortcuts(page) {
  useEffect(() => {
    const onKeyDown = (event) => {
      if (event.key === "Escape" && !event.defaultPrevented && !event.isComposing) {
        if (page.drawerOpen.value) page.drawerOpen.value = false;
        else page.stop();
      }
      const act = shortcut(page, event);
      if (act?.() !== undefined) event.preventDefault();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
}
