/** What a user does with a chat: the items of its menu in the list, and of the palette. */

import { Bin, File, Link, Pin } from "../widgets/icons.js";

/** @returns {import("../widgets/menu.js").MenuItem[]} */
export function chatActions(page, { id, pinned }) {
  return [
    { label: pinned ? "Unpin" : "Pin", icon: Pin, act: () => page.chat.pin(id, !pinned) },
    { label: "Share…", icon: Link, act: () => (page.dialog.value = { kind: "share", sessionId: id }) },
    { label: "Print or save as PDF", icon: File, act: () => page.print(id) },
    { label: "Save as Markdown", icon: File, act: () => page.save(id, "md") },
    { label: "Save as JSON", icon: File, act: () => page.save(id, "json") },
    { label: "Delete", icon: Bin, danger: true, act: () => page.remove(id) },
  ];
}
