/** The list of chats: open, rename, delete; a dot where an answer is being written or waits unread. */

import { useLayoutEffect, useRef } from "preact/hooks";
import { signal } from "@preact/signals";

import { html } from "../widgets/html.js";
import { Bin, Close, Mark, More, Pencil, Plus } from "../widgets/icons.js";
import { ThemeSwitch } from "../widgets/theme.js";

const DAY_MS = 86_400_000;

/** The session whose menu is open, and where: one menu serves the whole list. */
const menu = signal(null);

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
    <nav class="sessions" aria-label="Chats" onScroll=${() => (menu.value = null)}>
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
      ${page.nextCursor.value &&
      html`<button type="button" class="more-sessions" onClick=${() => page.moreSessions()}>
        Older chats
      </button>`}
    </nav>
    <div class="sidebar-foot"><${ThemeSwitch} store=${page.store} /></div>
    <${SessionMenu} page=${page} />
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
      aria-expanded=${String(menu.value?.session.id === session.id)}
      onClick=${(event) => toggleMenu(session, event.currentTarget)}><${More} /></button>
  </li>`;
}

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
    value=${session.title} onKeyDown=${onKeyDown} onBlur=${keep} />`;
}

/** The button opens its menu, or closes the one it had opened. */
function toggleMenu(session, button) {
  if (menu.value?.session.id === session.id) {
    menu.value = null;
    return;
  }
  const { bottom, right } = button.getBoundingClientRect();
  menu.value = { session, button, bottom, right };
}

/** A popover: the browser closes it on Esc and on a click elsewhere, and draws it above everything. */
function SessionMenu({ page }) {
  const element = useRef(null);
  const open = menu.value;
  useLayoutEffect(() => {
    if (!open) return;
    const box = element.current;
    box.showPopover();
    const top = Math.min(open.bottom + 4, innerHeight - box.offsetHeight - 8);
    box.style.top = `${top}px`;
    box.style.left = `${Math.max(8, open.right - box.offsetWidth)}px`;
    box.querySelector("button").focus();
  }, [open]);
  if (!open) return null;
  const run = (act) => () => {
    menu.value = null;
    act(open.session.id);
  };
  const remove = (id) => {
    focusBeside(open.button);
    page.remove(id);
  };
  const onToggle = (event) => {
    if (event.newState !== "closed") return;
    menu.value = null;
    open.button.focus();
  };
  return html`<div class="menu" popover="auto" role="menu" ref=${element} onToggle=${onToggle} onKeyDown=${moveInMenu}>
    <button type="button" role="menuitem" onClick=${run((id) => (page.renaming.value = id))}><${Pencil} />Rename</button>
    <button type="button" role="menuitem" class="danger" onClick=${run(remove)}><${Bin} />Delete</button>
  </div>`;
}

/** The row of this button is about to go: the next one takes the focus, or the one before, or New chat. */
function focusBeside(button) {
  const sidebar = button.closest(".sidebar");
  const links = [...sidebar.querySelectorAll(".session")];
  const index = links.findIndex((link) => link.parentElement.contains(button));
  (links[index + 1] ?? links[index - 1] ?? sidebar.querySelector(".new-chat")).focus();
}

function moveInMenu(event) {
  const items = [...event.currentTarget.querySelectorAll("[role=menuitem]")];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") event.stopPropagation();
  if (!step) return;
  event.preventDefault();
  const index = items.indexOf(document.activeElement);
  items[(index + step + items.length) % items.length].focus();
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
