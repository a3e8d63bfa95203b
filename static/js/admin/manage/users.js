/** Users: the list, and the one that is open with tokens, quotas, group and what they store. */

import { computed } from "@preact/signals";

import { newKey } from "../../connection/protocol.js";
import { html } from "../../widgets/html.js";
import { Person } from "../../widgets/icons.js";
import { visibleName } from "../../widgets/visible.js";
import { TRANSCRIPTS, ask, fill } from "../frame/dialog.js";
import { Beside, Empty, Pager, Read, besideUnread } from "../frame/parts.js";
import { Reading, readOpen } from "../frame/reading.js";
import { Table } from "../frame/table.js";
import { ago, count, date, size } from "../frame/words.js";
import { Facts, of, quotaFields, quotaText } from "./drawer.js";
import { showOnce } from "./forms.js";
import { GroupField, GroupSearch } from "./group-field.js";
import { Paged } from "./paged.js";
import { numberOf, quotasOf } from "./quotas.js";

const EVERY_MS = 5000;
const SCOPES = [
  ["admin", "may see and manage everything but what users wrote"],
  ["admin:transcripts", "may read what users wrote"],
  ["admin:operate", "may restart workers and change what they log"],
];

class Users {
  openId = computed(() => (this.admin.route.tab === TAB.id ? (this.admin.route.params.open ?? null) : null));
  details = new Reading((api) => this.#readDetails(api), { everyMs: EVERY_MS });
  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
    this.paged = new Paged(admin, { tab: TAB.id, path: "/users" });
    this.groupSearch = new GroupSearch(admin);
    this.openId.subscribe(() => this.details.renew());
  }

  readings() {
    const open = this.openId.value === null ? [] : [this.details];
    return [...this.groupSearch.readings(), this.paged.list, ...open];
  }

  #readDetails(api) {
    const read = async (id) => {
      const user = await api.get(`/users/${id}`);
      const { groups } = user.group ? await api.get("/groups", { find: user.group }) : { groups: [] };
      return { user, group: groups.find((one) => one.id === user.group) ?? null, stored: await api.get(`/users/${id}/storage`) };
    };
    return readOpen(this.admin, { openId: this.openId, read, gone: "There is no such user." });
  }

  show(id) {
    this.admin.route.set({ open: id }, { keep: true });
  }

  // ---- deeds ----

  add() {
    const keys = new Map(); // of idempotency: the same words asked again, as after an outage, make one user
    fill(this.admin, {
      title: "Add a user",
      text: "They get a token, which is shown this once.",
      deed: "Add",
      fields: [
        { name: "name", label: "Name", isNeeded: true },
        { name: "purpose", label: "What the token is for", hint: "laptop" },
        { name: "days", label: "Days until the token expires", kind: "number", hint: "never" },
        { name: "admin", label: "May be an admin", kind: "check" },
      ],
      act: ({ name, purpose, days, admin }) => {
        const roles = admin ? ["user", "admin"] : ["user"];
        const body = { name, purpose, roles, scopes: admin ? ["admin"] : [], expires_in_s: secondsOf(days) };
        const asked = JSON.stringify(body);
        if (!keys.has(asked)) keys.set(asked, newKey());
        return this.admin.act((api) => api.postOnce("/users", body, keys.get(asked)), "Added.");
      },
      then: (user) => {
        this.show(user.id);
        const others = user.namesakes?.length > 0 ? ` Such a name has also ${user.namesakes.join(", ")}.` : "";
        const text = `Nobody can read it again.${others}`;
        showOnce(this.admin, { title: `The token of ${visibleName(user.name)}`, text, secret: user.token });
      },
    });
  }

  change(user, body, done) {
    return this.admin.act((api) => api.patch(pathOf(user), body), done);
  }

  edit(user) {
    fill(this.admin, {
      title: "Name and roles",
      text: "Connections whose rights change are closed.",
      deed: "Save",
      fields: [
        { name: "name", label: "Name", value: user.name, isNeeded: true },
        { name: "user", label: "May chat", kind: "check", value: user.roles.includes("user") },
        { name: "admin", label: "May be an admin", kind: "check", value: user.roles.includes("admin") },
      ],
      act: ({ name, user: chats, admin }) => {
        // Only what was changed here: another admin may have changed the rest meanwhile.
        const isOther = chats !== user.roles.includes("user") || admin !== user.roles.includes("admin");
        const roles = isOther ? [chats && "user", admin && "admin"].filter(Boolean) : undefined;
        return this.change(user, { name: name === user.name ? undefined : name, roles }, "Saved.");
      },
    });
  }

  limit(user) {
    fill(this.admin, {
      title: `Quotas of ${visibleName(user.name)}`,
      text: "What is empty is as the server's settings say; 0 is no limit.",
      deed: "Save",
      fields: quotaFields(user.quotas, "as the settings say"),
      act: (values) => {
        const open = this.details.value.value?.user;
        const { quotas } = open?.id === user.id ? open : user;
        return this.change(user, { quotas: quotasOf(values, user.quotas, quotas) }, "Saved.");
      },
    });
  }

  move(user, current) {
    fill(this.admin, {
      title: `The group of ${visibleName(user.name)}`,
      text: "Its members share quotas. A user is in one group at most.",
      deed: "Save",
      fields: [{ name: "group", View: GroupField, value: user.group ?? "", search: this.groupSearch, current }],
      act: ({ group }) => {
        if (group === (user.group ?? "")) return;
        const put = (api) => api.put(`/groups/${group}/members/${user.id}`);
        const leave = (api) => api.delete(`/groups/${user.group}/members/${user.id}`);
        return this.admin.act(group ? put : leave, "Saved.");
      },
    });
  }

  disable(user) {
    if (user.disabled) return this.change(user, { disabled: false }, "Enabled.");
    ask(this.admin, {
      title: `Disable ${visibleName(user.name)}`,
      text: "All their connections are closed, and their share links show nothing, until you enable them again.",
      deed: "Disable",
      danger: true,
      act: () => this.change(user, { disabled: true }, "Disabled."),
    });
  }

  remove(user) {
    fill(this.admin, {
      title: `Remove ${visibleName(user.name)}`,
      text: "Their chats, share links and tokens go with them. This cannot be undone.",
      deed: "Remove",
      danger: true,
      fields: [{ name: "isSure", label: "Yes, remove everything of theirs", kind: "check", isNeeded: true }],
      act: () => this.admin.act((api) => api.delete(pathOf(user)), "Removed."),
      then: () => this.show(null),
    });
  }

  addToken(user) {
    const scopes = user.roles.includes("admin") ? SCOPES : [];
    fill(this.admin, {
      title: `Another token for ${visibleName(user.name)}`,
      text: "Who has it is logged in as this user. It is shown this once.",
      deed: "Make a token",
      fields: [
        { name: "purpose", label: "What it is for", hint: "backup script" },
        { name: "days", label: "Days until it expires", kind: "number", hint: "never" },
        ...scopes.map(([scope, meaning]) => ({ name: scope, label: `${scope}: ${meaning}`, kind: "check" })),
      ],
      act: (values) => {
        const body = {
          purpose: values.purpose,
          expires_in_s: secondsOf(values.days),
          scopes: scopes.map(([scope]) => scope).filter((scope) => values[scope]),
        };
        return this.admin.act((api) => api.post(`${pathOf(user)}/tokens`, body), "Made.");
      },
      then: (made) =>
        showOnce(this.admin, { title: `A token of ${visibleName(user.name)}`, text: "Nobody can read it again.", secret: made.token }),
    });
  }

  async invite(user) {
    const made = await this.admin.act((api) => api.post(`${pathOf(user)}/login-codes`));
    if (!made) return;
    const text = "It logs one browser in, once, within ten minutes.";
    showOnce(this.admin, { title: `A login link for ${visibleName(user.name)}`, text, secret: new URL(made.path, location.href).href });
  }

  revoke(user, token) {
    ask(this.admin, {
      title: "Revoke this token",
      text: `${tokenName(token)}: its connections are closed.`,
      deed: "Revoke",
      danger: true,
      act: () => this.admin.act((api) => api.delete(`${pathOf(user)}/tokens/${token.id}`), "Revoked."),
    });
  }
}

const pathOf = (user) => `/users/${encodeURIComponent(user.id)}`;
const secondsOf = (days) => (numberOf(days) === null ? null : numberOf(days) * 86_400);

export const TAB = { id: "users", label: "Users", group: "Manage", icon: Person, open: (admin) => new Users(admin), View: UsersView };

function UsersView({ admin, state }) {
  const openId = state.openId.value;
  const { paged } = state;
  return html`<div class=${openId ? "tab has-drawer" : "tab"}>
    <main class="admin-main">
      <div class="filters">
        <button type="button" class="plain" onClick=${() => state.add()}>Add a user …</button>
      </div>
      <${Read} reading=${paged.list}>
        ${({ users }) =>
          users.length === 0
            ? html`<${Empty}>No users yet, beside those that are built in.<//>`
            : html`<${Table} label="Users" kind="of-users" columns=${columnsOf(admin, state)} rows=${users} keyOf=${({ id }) => id}
                onOpen=${({ id }) => state.show(id)} openKey=${openId} />`}
      <//>
      <${Pager} number=${paged.pageNumber} hasMore=${Boolean(paged.list.value.value?.next_cursor)}
        onNewer=${() => paged.newer()} onOlder=${() => paged.older()} />
    </main>
    ${openId && html`<${Drawer} key=${openId} admin=${admin} state=${state} />`}
  </div>`;
}

function columnsOf(admin, state) {
  const names = new Map(state.paged.list.value.value.groups.map(({ id, name }) => [id, visibleName(name)]));
  return [
    {
      id: "name",
      label: "Name",
      cell: ({ id, name }) => html`<button type="button" class="link" onClick=${() => state.show(id)}>${visibleName(name)}</button>`,
    },
    { id: "roles", label: "Roles", cell: ({ roles }) => roles.join(", ") || null },
    { id: "group", label: "Group", cell: ({ group }) => group && (names.get(group) ?? group) },
    { id: "quotas", label: "Own quotas", cell: ({ quotas }) => quotaText(quotas, null) },
    { id: "created", label: "Added", cell: ({ created_at: at }) => ago(at, admin.now.peek()) },
    { id: "state", label: "State", cell: ({ disabled }) => html`<${Standing} disabled=${disabled} />` },
  ];
}

function Standing({ disabled }) {
  return disabled ? html`<span class="state bad">disabled</span>` : html`<span class="state good">enabled</span>`;
}

function Drawer({ admin, state }) {
  const read = state.details.value.value;
  const close = () => state.show(null);
  if (!read) return besideUnread(admin, state.details, close);
  const { user, group, stored } = read;
  return html`<${Beside} admin=${admin} title=${visibleName(user.name)} onClose=${close}>
    <${Facts} facts=${[
      ["State", html`<${Standing} disabled=${user.disabled} />`],
      ["Roles", user.roles.join(", ") || "none"],
      ["Group", group ? visibleName(group.name) : (user.group ?? "none")],
      ["Own quotas", quotaText(user.quotas, "as the settings say")],
      ["Tokens today", of(stored.tokens_today, user.quotas.tokens_per_day)],
      ["Stores", `${count(stored.sessions)} sessions, ${size(stored.bytes)}${stored.counted < stored.sessions ? " in the newest" : ""}`],
      ["Added", date(user.created_at)],
      ["User", html`<code>${user.id}</code>`],
    ]} />
    <div class="deeds">
      <button type="button" class="plain" onClick=${() => state.edit(user)}>Change …</button>
      <button type="button" class="plain" onClick=${() => state.limit(user)}>Quotas …</button>
      <button type="button" class="plain" onClick=${() => state.move(user, group)}>Group …</button>
      ${admin.may(TRANSCRIPTS) && html`<button type="button" class="plain" onClick=${() => state.invite(user)}>Invite …</button>`}
      <button type="button" class="plain" onClick=${() => state.disable(user)}>${user.disabled ? "Enable" : "Disable …"}</button>
      <button type="button" class="plain danger" onClick=${() => state.remove(user)}>Remove …</button>
    </div>
    <section>
      <h3>Tokens and browsers</h3>
      <${Tokens} state=${state} user=${user} />
      ${admin.may(TRANSCRIPTS) && html`<button type="button" class="plain" onClick=${() => state.addToken(user)}>Another token …</button>`}
    </section>
  <//>`;
}

function Tokens({ state, user }) {
  if (user.tokens.length === 0) return html`<p class="muted">None: this user cannot come in.</p>`;
  const about = ({ scopes, expires_at: at }) => [scopes.join(", "), at ? `expires ${date(at)}` : "never expires"].filter(Boolean).join(" · ");
  return html`<ul class="members">
    ${user.tokens.map(
      (token) => html`<li key=${token.id}>
        <span>${tokenName(token)} <small>${about(token)}</small></span>
        <button type="button" class="plain small danger" onClick=${() => state.revoke(user, token)}>Revoke …</button>
      </li>`,
    )}
  </ul>`;
}

const tokenName = ({ purpose, kind }) => visibleName(purpose) || (kind === "cookie" ? "A browser" : "A token");
