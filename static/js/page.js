/**
 * The page's one controller: it owns the chat, the socket and the transcript, turns what the user does
 * into commands, and holds as signals what only the page knows (banner, toasts, drawer, drafts).
 * Components read it and call it; they hold no state of their own worth losing.
 */

import { batch, signal } from "@preact/signals";

import * as api from "./api.js";
import { Chat } from "./chat.js";
import { Outbox } from "./outbox.js";
import { errorText } from "./protocol.js";
import { Socket } from "./socket.js";
import { Store } from "./storage.js";
import { Transcript } from "./view.js";

const BANNER_DELAY_MS = 2000; // shorter troubles are nobody's business
const RESUMED_MS = 3000;
const UNDO_MS = 5000;
const TOAST_MS = 5000;
const DRAFT_PREFIX = "parley.draft.";

const HEALTH_TEXTS = {
  store: "Answers continue, storage is catching up",
  engine: { unavailable: "The model is restarting", stalled: "The model is slow to answer" },
};

export class Page {
  /** Bumped when the shell must be drawn again; components read it and then the chat. */
  tick = signal(0);
  /** @type {import("@preact/signals").Signal<{text: string, tone: string, action?: object} | null>} */
  banner = signal(null);
  toasts = signal([]);
  spoken = signal("");
  drawerOpen = signal(false);
  signedOut = signal(false);
  model = signal("");
  /** Sessions whose deletion waits for its undo to run out. */
  deleting = signal(new Map());
  renaming = signal(null);
  away = signal(false);
  /** @type {import("@preact/signals").Signal<{error: object, until: number} | null>} */
  refusal = signal(null);
  nextCursor = signal(null);
  draft = signal("");
  #bannerTimer = 0;
  #loadingEarlier = false;

  constructor() {
    this.store = Store.open();
    this.chat = new Chat({
      outbox: new Outbox(this.store),
      send: (frame) => this.socket.send(frame),
      refetch: (sessionId) => this.#refetch(sessionId),
      onchange: (change) => this.#chatChanged(change),
    });
    this.socket = new Socket({
      connect: Socket.to("/v1/ws"),
      onopen: () => this.#connected(),
      onframe: (frame) => this.chat.receive(frame),
      onstate: (state) => this.#socketChanged(state),
      visible: () => !document.hidden,
    });
  }

  start() {
    addEventListener("hashchange", () => this.#showAddressed());
    addEventListener("online", () => this.socket.wake());
    addEventListener("pagehide", () => this.#deleteNow());
    document.addEventListener("visibilitychange", () => this.#visibilityChanged());
    this.#showAddressed();
    this.socket.open();
    api.modelName().then((name) => (this.model.value = name), () => {});
  }

  /** The transcript's elements exist now. */
  attach(scroller, log) {
    this.transcript = new Transcript(this.chat, scroller, log, () => {
      this.away.value = this.transcript.scroll.away;
    });
    this.transcript.changed();
  }

  // ---- what the user does ----

  /** Show a session, or with null a new chat. The address decides, so that Back and reload agree. */
  show(sessionId) {
    this.drawerOpen.value = false;
    const hash = sessionId ? `#${sessionId}` : "";
    if (location.hash === hash) this.#showAddressed();
    else if (hash) location.hash = hash;
    else {
      history.pushState(null, "", location.pathname);
      this.#showAddressed();
    }
  }

  say(text) {
    if (text.trim() === "" || this.chat.activity() !== "idle") return false;
    this.setDraft("");
    this.refusal.value = null;
    this.chat.say(text);
    this.transcript.scroll.toLatest();
    return true;
  }

  /** Freeze what is painted and tell the server how much that was. A new chat not yet made is taken back. */
  stop() {
    if (!["sending", "running"].includes(this.chat.activity())) return;
    const run = this.chat.current?.activeRun;
    this.chat.stop(run ? this.transcript.freeze(run) : null);
    this.transcript.drawNow();
  }

  setDraft(text) {
    this.draft.value = text;
    const name = this.#draftName;
    if (text === "") this.store.remove(name);
    else this.store.set(name, text);
  }

  rename(sessionId, title) {
    this.renaming.value = null;
    const clean = title.trim();
    const known = this.chat.sessions.get(sessionId)?.session.title;
    if (clean && clean !== known) this.chat.rename(sessionId, clean);
  }

  /** Hide a session at once; it is deleted for good when the undo has run out. */
  remove(sessionId) {
    const wasOnScreen = this.chat.currentId === sessionId;
    const timer = setTimeout(() => this.#finishRemoval(sessionId), UNDO_MS);
    this.deleting.value = new Map([...this.deleting.value, [sessionId, timer]]);
    if (wasOnScreen) this.show(null);
    this.toast("Chat deleted", {
      label: "Undo",
      run: () => this.#undoRemoval(sessionId, wasOnScreen),
    });
  }

  async earlier() {
    const conversation = this.chat.current;
    if (!conversation?.hasMore || this.#loadingEarlier) return;
    this.#loadingEarlier = true;
    try {
      const page = await api.listMessages(conversation.id, conversation.path[0]?.id);
      this.chat.earlier(conversation.id, page.messages, page.has_more);
    } catch (error) {
      this.#httpFailed(error, "Earlier messages could not be loaded. Try again.");
    }
    this.#loadingEarlier = false;
  }

  async moreSessions() {
    try {
      const page = await api.listSessions(this.nextCursor.value);
      this.nextCursor.value = page.next_cursor;
      this.chat.listed(page.sessions);
    } catch (error) {
      this.#httpFailed(error, "More chats could not be loaded. Try again.");
    }
  }

  reconnect() {
    this.signedOut.value = false;
    this.socket.open();
  }

  toast(text, action = null) {
    const toast = { id: crypto.getRandomValues(new Uint32Array(1))[0], text, action };
    this.toasts.value = [...this.toasts.value, toast];
    setTimeout(() => this.dismiss(toast.id), TOAST_MS);
  }

  dismiss(id) {
    this.toasts.value = this.toasts.value.filter((toast) => toast.id !== id);
  }

  /** Said once to those who listen instead of looking. */
  speak(text) {
    this.spoken.value = text;
  }

  // ---- what the chat says ----

  #chatChanged(change) {
    const onScreen = change.sessionId === this.chat.currentId;
    switch (change.kind) {
      case "text":
        if (onScreen) this.transcript.grew(change.run, change.frame);
        return;
      case "opened":
        history.replaceState(null, "", `#${change.sessionId}`);
        break;
      case "gone":
        this.#gone(change);
        break;
      case "refused":
        this.#refused(change);
        break;
      case "notice":
        this.toast(errorText(change.error));
        break;
      case "conversation":
        if (change.outcome === "replaced" && onScreen) this.transcript.replaced(change.run);
        if (change.frame && onScreen) this.#speakOf(change);
    }
    this.transcript?.changed();
    this.#showHealth();
    this.tick.value += 1;
  }

  #speakOf({ frame, run }) {
    if (frame.type === "response.created") this.speak("Generating");
    if (frame.type !== "response.done") return;
    const words = run.message.text.split(/\s+/).filter(Boolean).length;
    const { status } = frame.response;
    if (status === "completed") this.speak(`Answer complete, ${words} words`);
    else this.speak(status === "cancelled" ? "Stopped" : "The answer ended early");
  }

  #gone({ sessionId, wasOnScreen, by, reason }) {
    if (!wasOnScreen) return;
    history.replaceState(null, "", location.pathname);
    this.#loadDraft();
    const who = by === "admin" ? "An administrator removed this chat" : "This chat was deleted";
    this.toast(reason ? `${who}: ${reason}` : who);
    this.store.remove(DRAFT_PREFIX + sessionId);
  }

  /** Nothing that was typed is lost: a refused message goes back to where it was written. */
  #refused({ send, error }) {
    const name = DRAFT_PREFIX + (send.sessionId ?? "new");
    const draft = [send.text, this.store.get(name)].filter(Boolean).join("\n\n");
    this.store.set(name, draft);
    if (name === this.#draftName) this.draft.value = draft;
    this.refusal.value = { error, until: Date.now() + (error.retry_after_ms ?? 0) };
  }

  // ---- connection ----

  #connected() {
    this.chat.connected();
    this.#refreshSessions();
  }

  #socketChanged(state) {
    if (state === "open") {
      clearTimeout(this.#bannerTimer);
      this.#bannerTimer = 0;
      if (this.banner.value?.tone === "lost") this.#showResumed();
    } else if (state === "login") {
      this.signedOut.value = true;
      this.banner.value = null;
    } else if (state === "stopped") {
      const action = { label: "Reconnect", run: () => this.reconnect() };
      this.banner.value = { text: this.socket.stoppedText, tone: "stopped", action };
    } else {
      this.#bannerTimer ||= setTimeout(() => this.#showLost(), BANNER_DELAY_MS);
    }
    this.tick.value += 1;
  }

  #showLost() {
    this.banner.value = { text: "Reconnecting…", tone: "lost" };
    this.#checkSignedIn();
  }

  #showResumed() {
    this.banner.value = { text: "Resumed", tone: "good" };
    this.speak("Reconnected");
    setTimeout(() => {
      if (this.banner.value?.tone === "good") this.banner.value = null;
      this.#showHealth();
    }, RESUMED_MS);
  }

  #showHealth() {
    const { store, engine } = this.chat.degraded;
    const text = store ? HEALTH_TEXTS.store : HEALTH_TEXTS.engine[engine];
    const { value: shown } = this.banner;
    if (text && shown?.text !== text && (!shown || shown.tone === "degraded")) {
      this.banner.value = { text, tone: "degraded" };
    } else if (!text && shown?.tone === "degraded") this.banner.value = null;
  }

  async #refreshSessions() {
    try {
      const page = await api.listSessions();
      batch(() => {
        this.signedOut.value = false;
        this.nextCursor.value = page.next_cursor;
        this.chat.listed(page.sessions, { complete: page.next_cursor === null });
      });
    } catch (error) {
      this.#httpFailed(error, "The list of chats could not be loaded. It comes with the next reconnect.");
    }
  }

  /** A refused upgrade says nothing to a browser; an HTTP answer tells a missing login from a lost server. */
  #checkSignedIn() {
    api.listSessions().catch((error) => {
      if (error instanceof api.SignedOut) this.#httpFailed(error);
    });
  }

  #httpFailed(error, text) {
    if (error instanceof api.SignedOut) {
      this.signedOut.value = true;
      this.banner.value = null;
    } else this.toast(text);
  }

  async #refetch(sessionId) {
    try {
      this.chat.settle(sessionId, (await api.listMessages(sessionId)).messages);
    } catch (error) {
      this.#httpFailed(error, "A message could not be loaded. Reload the page.");
    }
  }

  #visibilityChanged() {
    if (this.signedOut.value && !document.hidden) this.reconnect(); // perhaps signed in meanwhile
    else this.socket.visibilityChanged();
    this.transcript?.changed();
  }

  // ---- sessions ----

  #showAddressed() {
    const sessionId = /^#(ses_[\w-]+)$/.exec(location.hash)?.[1] ?? null;
    this.refusal.value = null;
    this.renaming.value = null;
    this.chat.open(sessionId);
    this.#loadDraft();
    this.tick.value += 1;
  }

  get #draftName() {
    return DRAFT_PREFIX + (this.chat.currentId ?? "new");
  }

  #loadDraft() {
    this.draft.value = this.store.get(this.#draftName) ?? "";
  }

  #undoRemoval(sessionId, wasOnScreen) {
    clearTimeout(this.deleting.value.get(sessionId));
    this.#forgetRemoval(sessionId);
    if (wasOnScreen) this.show(sessionId);
  }

  #finishRemoval(sessionId) {
    this.chat.remove(sessionId);
    this.store.remove(DRAFT_PREFIX + sessionId);
    this.#forgetRemoval(sessionId);
  }

  #forgetRemoval(sessionId) {
    const left = new Map(this.deleting.value);
    left.delete(sessionId);
    this.deleting.value = left;
  }

  /** The page goes away: what was deleted stays deleted. */
  #deleteNow() {
    for (const sessionId of this.deleting.value.keys()) this.#finishRemoval(sessionId);
  }
}
