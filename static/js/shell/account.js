/** Who is signed in here, and the way out; what concerns no single chat. */

import { useRef } from "preact/hooks";

import { html } from "../widgets/html.js";
import { openMenu } from "../widgets/menu.js";

export function Account({ page }) {
  page.tick.value;
  const files = useRef(null);
  const user = page.chat.ready?.user;
  if (!user) return html`<span class="account"></span>`;
  const items = [
    { label: "Import a chat…", act: () => files.current.click() },
    { label: "Keyboard shortcuts", act: () => (page.dialog.value = { kind: "shortcuts" }) },
    { label: "Sign out", act: () => page.logOut({ everywhere: false }) },
    { label: "Sign out everywhere", danger: true, act: () => page.logOut({ everywhere: true }) },
  ];
  const take = async ({ currentTarget: field }) => {
    const [file] = field.files;
    field.value = ""; // the same file may be chosen again
    if (file) await page.importFile(file);
  };
  return html`<button type="button" class="account" aria-haspopup="menu" title=${`Signed in as ${user.name}`}
      onClick=${(event) => openMenu(event, items, `Signed in as ${user.name}`)}>
      <span class="initial" aria-hidden="true">${[...user.name][0]?.toUpperCase()}</span>
      <span class="name" dir="auto">${user.name}</span>
    </button>
    <input type="file" accept="application/json,.json" hidden ref=${files} onChange=${take} />`;
}
