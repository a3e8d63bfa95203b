/** The list of chats: open, rename, delete; a dot where an answer is being written or waits unread. */

import { useLayoutEffect, useRef } from "preact/hooks";

import { chatActions } from "../actions/on-chats.js";
import { html } from "../widgets/html.js";
import { Close, Mark, More, Pencil, Plus } from "../widgets/icons.js";
import { closeMenu, openMenu } from "../widgets/menu.js";
import { ThemeSwitch } from "../widgets/theme.js";
import { Account } from "./account.js";

const DAY_MS = 86_400_000;

/** The session whose row takes the focus when it has been drawn, after a rename by keyboard. */
let focusNext = null;

export function Sidebar({ page, inert }) {
  page.tick.value;
  const { chat } = page;
  const entries = chat.sessions.sorted.filter(({ session }) => !page.removals.hides(session.id));
  return html`<aside class="sidebar" id="sidebar" inert=${inert} aria-label="Chats">
    <div class="brand">
      <${Mark} /><span class="name">Parley</span>
      <button type="button" class="quiet close-drawer" aria-label="Close the list of chats"
        onClick=${() => (page.drawerOpen.value = false)}><${Close} /></button>
    </div>
    <button type="button" class="new-chat" title="Ctrl+Shift+O" onClick=${() => page.show(null)}>
      <${Plus} />New chat
    </button>
    <nav class="sessions" aria-label="Chats" onScroll=${closeMenu}>
      ${groups(entries).map(
        ([name, members]) => html`<section key=${name}>
          <h2>${name}</h2>
          <ul>
            ${members.map(
              ({ session, active, unseen }) => html`<${Row}
                key=${session.id}
                page=${page}
                session=${session}
                isCurrent=${session.id === chat.currentId}
                isActive=${active || chat.activity(session.id) !== "idle"}
                unseen=${unseen}
              />`,
            )}
          </ul>
        </section>`,
      )}
      ${page.nextCursor.value && html`<${Older} key=${page.nextCursor.value} page=${page} />`}
    </nav>
    <div class="sidebar-foot"><${Account} page=${page} /><${ThemeSwitch} store=${page.store} /></div>
  </aside>`;
}

function Row({ page, session, isCurrent, isActive, unseen }) {
  const title = session.title || "New chat";
  const link = useRef(null);
  useLayoutEffect(() => {
    if (focusNext !== session.id || !link.current) return;
    focusNext = null;
    link.current.focus();
  });
  const state = isActive ? "answering" : unseen ? "new answer" : "";
  if (page.renaming.value === session.id) {
    return html`<li><${RenameField} page=${page} session=${session} /></li>`;
  }
  return html`<li class=${isCurrent ? "row current" : "row"}>
    <a class="session" ref=${link} href=${`#${session.id}`} aria-current=${isCurrent ? "page" : undefined}
      title=${title} onClick=${() => (page.drawerOpen.value = false)}
      onDblClick=${() => (page.renaming.value = session.id)}>
      <span class="title" dir="auto">${title}</span>
      ${state && html`<span class=${`dot ${isActive ? "live" : "unseen"}`} role="img" aria-label=${state}></span>`}
    </a>
    <button type="button" class="quiet options" aria-label=${`Options for ${title}`} aria-haspopup="menu"
      onClick=${(event) => openMenu(event, itemsOf(page, session, event.currentTarget))}><${More} /></button>
  </li>`;
}

/** Older chats come by themselves when the end of the list comes into view. */
function Older({ page }) {
  const button = useRef(null);
  useLayoutEffect(() => {
    const watcher = new IntersectionObserver(([entry]) => entry.isIntersecting && page.moreSessions(), {
      root: button.current.closest(".sessions"),
      rootMargin: "300px",
    });
    watcher.observe(button.current);
    return () => watcher.disconnect();
  }, []);
  return html`<button type="button" class="more-sessions" ref=${button} onClick=${() => page.moreSessions()}>
    Older chats
  </button>`;
}

/** The row of a chat that is deleted takes the focus with it: another one has it before. */
function itemsOf(page, session, button) {
  const keepFocus = ({ danger, act, ...item }) => ({ ...item, danger, act: danger ? () => (focusBeside(button), act()) : act });
  const rename = { label: "Rename", icon: Pencil, act: () => (page.renaming.value = session.id) };
  return [rename, ...chatActions(page, session).map(keepFocus)];
}

/** The field holds what is typed in it, also when the server names the chat meanwhile. */
function RenameField({ page, session }) {
  const field = useRef(null);
  useLayoutEffect(() => field.current.select(), []);
  const keep = () => page.renaming.value === session.id && page.rename(session.id, field.current.value);
  const onKeyDown = (event) => {
    if (event.key === "Enter" || event.key === "Escape") focusNext = session.id;
    if (event.key === "Enter") keep();
    if (event.key !== "Escape") return;
    event.stopPropagation(); // Esc would also stop the answer
    page.renaming.value = null;
  };
  return html`<input class="rename" dir="auto" ref=${field} aria-label="Name of the chat" maxlength="200"
    defaultValue=${session.title} onKeyDown=${onKeyDown} onBlur=${keep} />`;
}

/** The row of this button is about to go: the next one takes the focus, or the one before, or New chat. */
function focusBeside(button) {
  const sidebar = button.closest(".sidebar");
  const links = [...sidebar.querySelectorAll(".session")];
  const index = links.findIndex((link) => link.parentElement.contains(button));
  (links[index + 1] ?? links[index - 1] ?? sidebar.querySelector(".new-chat")).focus();
}

/** Newest first already; only the headings are found here. */
function groups(entries) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  const nameOf = ({ session }) => {
    if (session.pinned) return "Pinned";
    if (session.updated_at >= midnight) return "Today";
    return session.updated_at >= midnight - DAY_MS ? "Yesterday" : "Earlier";
  };
  return [...Map.groupBy(entries, nameOf)];
}
