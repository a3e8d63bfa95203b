/** One field that finds chats by their titles, and everything that can be done. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { chatActions } from "../actions/on-chats.js";
import * as api from "../connection/api.js";
import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";

const MOST_CHATS = 8;
const PAUSE_MS = 150; // in typing, before the server is asked

export function Palette({ page, onClose }) {
  const words = useSignal("");
  const found = useSignal([]); // by the server, which knows chats that the list has not loaded
  const chosen = useSignal(0);
  const list = useRef(null);
  useEffect(() => {
    const query = words.value.trim();
    if (query === "") return void (found.value = []);
    const timer = setTimeout(() => {
      api.searchSessions(query).then((sessions) => query === words.value.trim() && (found.value = sessions), () => {});
    }, PAUSE_MS);
    return () => clearTimeout(timer);
  }, [words.value]);
  useEffect(() => list.current.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" }));

  const entries = entriesOf(page, words.value, found.value);
  const at = Math.min(chosen.value, entries.length - 1);
  const run = ({ act }) => {
    onClose();
    act();
  };
  const onKeyDown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      chosen.value = (at + step + entries.length) % Math.max(1, entries.length);
    }
    if (event.key === "Enter" && !event.isComposing && entries[at]) {
      event.preventDefault();
      run(entries[at]);
    }
  };
  const onInput = (event) => {
    words.value = event.currentTarget.value;
    chosen.value = 0;
  };
  return html`<${Dialog} title="Go to, or do" kind="palette" onClose=${onClose}>
    <input class="palette-field" autofocus type="text" role="combobox" aria-label="Search chats and actions"
      aria-expanded="true" aria-controls="palette-list" aria-activedescendant=${at >= 0 ? `palette-${at}` : undefined}
      placeholder="Search chats and actions" value=${words.value} onInput=${onInput} onKeyDown=${onKeyDown} />
    <ul id="palette-list" role="listbox" aria-label="Chats and actions" ref=${list}>
      ${entries.map(
        (entry, index) => html`<li key=${entry.key} id=${`palette-${index}`} role="option"
          aria-selected=${String(index === at)} onClick=${() => run(entry)}>
          <span dir="auto">${entry.label}</span>${entry.keys && html`<kbd>${entry.keys}</kbd>`}</li>`,
      )}
    </ul>
    ${entries.length === 0 && html`<p class="said" role="status">Nothing is called that</p>`}
  <//>`;
}

/** What can be done now, apart from the messages. */
function commandsOf(page) {
  const session = page.chat.sessions.get(page.chat.currentId)?.session;
  const ofChat = session ? chatActions(page, session) : [];
  const all = [
    { label: "New chat", keys: "Ctrl+Shift+O", act: () => page.show(null) },
    { label: "Settings", keys: "Ctrl+,", act: () => (page.dialog.value = { kind: "settings" }) },
    ...ofChat.map(({ label, act }) => ({ label: `This chat: ${label}`, act })),
    { label: "Keyboard shortcuts", keys: "Ctrl+/", act: () => (page.dialog.value = { kind: "shortcuts" }) },
    { label: "Sign out", act: () => page.logOut({ everywhere: false }) },
  ];
  return all.map((command) => ({ key: command.label, ...command }));
}

/** What fits the words: actions first, then chats, the newest first. */
function entriesOf(page, words, found) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = ({ label }) => wanted.every((word) => label.toLowerCase().includes(word));
  const held = page.chat.sessions.sorted.map(({ session }) => session);
  const sessions = new Map([...held, ...found].map((session) => [session.id, session]));
  const shown = [...sessions.values()].filter(({ id }) => !page.removals.hides(id));
  const chats = shown.map((session) => ({
    key: session.id,
    label: session.title || "New chat",
    act: () => page.show(session.id),
  }));
  return [...commandsOf(page).filter(fits), ...chats.filter(fits).slice(0, MOST_CHATS)];
}
