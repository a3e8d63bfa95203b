/** Groups of users who share quotas: the list, and the one that is open with its members. */

import { computed } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { People } from "../../widgets/icons.js";
import { visibleName } from "../../widgets/visible.js";
import { ask, fill } from "../frame/dialog.js";
import { Beside, Empty, Pager, Read, besideUnread } from "../frame/parts.js";
import { Reading, readOpen } from "../frame/reading.js";
import { Table } from "../frame/table.js";
import { count, date } from "../frame/words.js";
import { Facts, of, quotaFields, quotaText } from "./drawer.js";
import { Paged } from "./paged.js";
import { quotasOf } from "./quotas.js";

const EVERY_MS = 3000;

class Groups {
  openId = computed(() => (this.admin.route.tab === TAB.id ? (this.admin.route.params.open ?? null) : null));
  details = new Reading((api) => this.#readDetails(api), { everyMs: EVERY_MS });

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
    this.paged = new Paged(admin, { tab: TAB.id, path: "/groups" });
    this.openId.subscribe(() => this.details.renew());
  }

  readings() {
    return this.openId.value === null ? [this.paged.list] : [this.paged.list, this.details];
  }

  #readDetails(api) {
    const read = async (id) => ({
      group: await api.get(`/groups/${id}`),
      members: await api.get(`/groups/${id}/members`, { limit: 200 }),
    });
    return readOpen(this.admin, { openId: this.openId, read, gone: "There is no such group." });
  }

  show(id) {
    this.admin.route.set({ open: id }, { keep: true });
  }

  add() {
    fill(this.admin, {
      title: "Make a group",
      text: "Its members share these quotas. What is empty has no limit.",
      deed: "Make",
      fields: [{ name: "name", label: "Name", isNeeded: true }, ...quotaFields({}, "no limit")],
      act: (values) => {
        const body = { name: values.name, quotas: quotasOf(values) };
        return this.admin.act((api) => api.post("/groups", body), "Made.");
      },
      then: (group) => this.show(group.id),
    });
  }

  change(group) {
    fill(this.admin, {
      title: `Change ${visibleName(group.name)}`,
      text: "What is empty has no limit.",
      deed: "Save",
      fields: [{ name: "name", label: "Name", value: group.name, isNeeded: true }, ...quotaFields(group.quotas, "no limit")],
      act: (values) => {
        const open = this.details.value.value?.group;
        const { quotas } = open?.id === group.id ? open : group;
        const body = { name: values.name === group.name ? undefined : values.name, quotas: quotasOf(values, group.quotas, quotas) };
        return this.admin.act((api) => api.patch(pathOf(group), body), "Saved.");
      },
    });
  }

  remove(group) {
    ask(this.admin, {
      title: `Remove ${visibleName(group.name)}`,
      text: "Its members stay users, with their own quotas alone.",
      deed: "Remove",
      danger: true,
      act: () => this.admin.act((api) => api.delete(pathOf(group)), "Removed."),
      then: () => this.show(null),
    });
  }

  letGo(group, user) {
    const path = `${pathOf(group)}/members/${encodeURIComponent(user.id)}`;
    return this.admin.act((api) => api.delete(path), `${visibleName(user.name)} has left the group.`);
  }
}

const pathOf = (group) => `/groups/${encodeURIComponent(group.id)}`;

export const TAB = { id: "groups", label: "Groups", group: "Manage", icon: People, open: (admin) => new Groups(admin), View: GroupsView };

function GroupsView({ admin, state }) {
  const openId = state.openId.value;
  const { paged } = state;
  return html`<div class=${openId ? "tab has-drawer" : "tab"}>
    <main class="admin-main">
      <div class="filters">
        <button type="button" class="plain" onClick=${() => state.add()}>Make a group …</button>
      </div>
      <${Read} reading=${paged.list}>
        ${({ groups }) =>
          groups.length === 0
            ? html`<${Empty}>No groups yet. The members of a group share quotas.<//>`
            : html`<${Table} label="Groups" kind="of-groups" columns=${columnsOf(state)} rows=${groups} keyOf=${({ id }) => id}
                onOpen=${({ id }) => state.show(id)} openKey=${openId} />`}
      <//>
      <${Pager} number=${paged.pageNumber} hasMore=${Boolean(paged.list.value.value?.next_cursor)}
        onNewer=${() => paged.newer()} onOlder=${() => paged.older()} />
    </main>
    ${openId && html`<${Drawer} key=${openId} admin=${admin} state=${state} />`}
  </div>`;
}

function columnsOf(state) {
  return [
    {
      id: "name",
      label: "Name",
      cell: ({ id, name }) => html`<button type="button" class="link" onClick=${() => state.show(id)}>${visibleName(name)}</button>`,
    },
    { id: "members", label: "Members", number: true, cell: ({ members }) => count(members) },
    { id: "tokens", label: "Tokens today", number: true, cell: ({ tokens_today: used, quotas }) => of(used, quotas.tokens_per_day) },
    { id: "held", label: "Held by answers", number: true, cell: ({ tokens_held: held }) => count(held) },
    { id: "sessions", label: "Sessions", number: true, cell: ({ sessions, quotas }) => of(sessions, quotas.sessions) },
  ];
}

function Drawer({ admin, state }) {
  const read = state.details.value.value;
  const close = () => state.show(null);
  if (!read) return besideUnread(admin, state.details, close);
  const { group, members } = read;
  return html`<${Beside} admin=${admin} title=${visibleName(group.name)} onClose=${close}>
    <${Facts} facts=${[
      ["Quotas", quotaText(group.quotas, "no limits")],
      ["Tokens today", of(group.tokens_today, group.quotas.tokens_per_day)],
      ["Held by answers", count(group.tokens_held)],
      ["Sessions", of(group.sessions, group.quotas.sessions)],
      ["Made", date(group.created_at)],
      ["Group", html`<code>${group.id}</code>`],
    ]} />
    <div class="deeds">
      <button type="button" class="plain" onClick=${() => state.change(group)}>Change …</button>
      <button type="button" class="plain danger" onClick=${() => state.remove(group)}>Remove …</button>
    </div>
    <section>
      <h3>Members</h3>
      ${members.users.length === 0 && html`<p class="muted">None yet: open a user to put them into this group.</p>`}
      <ul class="members">
        ${members.users.map(
          (user) => html`<li key=${user.id}>
            <a href=${`#users?open=${encodeURIComponent(user.id)}`}>${visibleName(user.name)}</a>
            <button type="button" class="plain small" onClick=${() => state.letGo(group, user)}>Let go</button>
          </li>`,
        )}
      </ul>
      ${members.next_cursor && html`<p class="muted">These are the newest 200 of ${count(group.members)}.</p>`}
    </section>
  <//>`;
}
