/**
 * The page's one controller: it owns the chat, the socket and the transcript, turns what the user does
 * into commands, and holds as signals what only the page knows (drawer, dialog, the end of the list).
 * Components read it and call it; they hold no state of their own worth losing.
 */

import { signal } from "@preact/signals";

import * as api from "./connection/api.js";
import { Outbox } from "./connection/outbox.js";
import { errorText } from "./connection/protocol.js";
import { Socket } from "./connection/socket.js";
import { Store } from "./connection/storage.js";
import { KeptUser } from "./connection/user.js";
import { Announcement } from "./shell/announcement.js";
import { Speech } from "./shell/speech.js";
import { Toasts } from "./shell/toasts.js";
import { Banner } from "./state/banner.js";
import { Chat } from "./state/chat.js";
import { answerAgain, answerAgainWith } from "./actions/again.js";
import { copyMessage } from "./actions/copy.js";
import { showDetails } from "./actions/details.js";
import { editMessage } from "./actions/edit.js";
import { forkHere } from "./actions/fork.js";
import { goOn } from "./actions/go-on.js";
import { Drafts } from "./state/drafts.js";
import { QueueEdits } from "./state/queue.js";
import { Removals, UNDO_MS } from "./state/removals.js";
import { Settings } from "./state/settings.js";
import { Edits } from "./transcript/edit.js";
import { Transcript } from "./transcript/transcript.js";

const INPUT_BYTES = 128 * 1024; // the server refuses a longer question
const ANNOUNCED_MS = 1000;
const NO_CHAT = "That file is not a chat that was saved here as JSON.";
const FRAME_BYTES = 512 * 1024; // the server closes the connection over a larger frame
const FRAME_OVERHEAD = 1024;

export class Page {
  /** Bumped when the shell must be drawn again; components read it and then the chat. */
  tick = signal(0);
  toasts = new Toasts(UNDO_MS);
  speech = new Speech();
  drawerOpen = signal(false);
  signedOut = signal(false);
  /** @type {import("@preact/signals").Signal<{kind: string} | null>} */
  dialog = signal(null);
  renaming = signal(null);
  away = signal(false); // the reader scrolled up
  nextCursor = signal(null); // of the list of sessions
  /** @type {Promise<boolean> | null} */
  #loadingEarlier = null;
  /** What can be done with a message, in the order of the buttons below it. */
  #actions = [
    copyMessage(this),
    editMessage(this),
    answerAgain(this),
    goOn(this),
    answerAgainWith(this),
    forkHere(this),
    showDetails(this),
  ];

  constructor() {
    this.store = Store.open();
    const tabStore = Store.ofTab();
    this.user = new KeptUser(this.store, tabStore);
    this.chat = new Chat({
      outbox: new Outbox(this.store),
      send: (frame) => this.socket.send(frame),
      refetch: (sessionId) => this.#refetch(sessionId),
      later: (ms, act) => setTimeout(act, ms),
      onchange: (change) => this.#chatChanged(change),
    });
    this.socket = new Socket({
      connect: Socket.to("/v1/ws"),
      onopen: () => {}, // the next frame says whose connection it is
      onframe: (frame) => this.#received(frame),
      onstate: (state) => this.#socketChanged(state),
      onevicted: () => this.chat.evicted(),
      visible: () => !document.hidden,
    });
    this.banner = new Banner(() => this.#checkSignedIn());
    this.announcement = new Announcement(this.store);
    this.removals = new Removals(this.store, (sessionId) => {
      this.chat.remove(sessionId);
      this.drafts.take(sessionId);
    });
    this.drafts = new Drafts(this.store, this.chat);
    this.settings = new Settings(this.store, this.chat);
    this.edits = new Edits(this.store);
    this.queueEdits = new QueueEdits(tabStore);
  }

  start() {
    addEventListener("hashchange", () => this.#showAddressed());
    addEventListener("parley:said", ({ detail }) => this.speech.say(detail));
    addEventListener("online", () => this.socket.wake());
    addEventListener("pagehide", () => this.removals.pending.forEach(api.removeAtOnce));
    document.addEventListener("visibilitychange", () => this.#visibilityChanged());
    this.#showAddressed();
    this.socket.open();
  }

  /** The transcript's elements exist now. */
  attach(scroller, log) {
    this.transcript = new Transcript(this.chat, scroller, log, {
      actions: this.#actions,
      edits: this.edits,
      withdraw: (run) => this.chat.withdraw(run),
      sendEdit: (message, text) => this.sendEdit(message, text),
      consent: (message, call, decision) => this.chat.consent(message, call, decision),
      onscroll: () => (this.away.value = this.transcript.scroll.away),
    });
    this.transcript.changed();
  }

  // ---- what the user does ----

  /** Show a session, or with null a new chat. The address decides, so that Back and reload agree. */
  show(sessionId) {
    this.drawerOpen.value = false;
    if (sessionId) {
      location.hash = sessionId;
    } else {
      if (location.hash) history.pushState(null, "", location.pathname);
      this.#showAddressed();
    }
  }

  /**
   * @param {string} text
   * @param {{replaces?: boolean, steers?: boolean}} [how] whether it ends the answer that is being written, or
   *   that one goes on with it; otherwise it waits
   * @returns {boolean} whether the message is on its way
   */
  say(text, { replaces = false, steers = false } = {}) {
    const activity = this.chat.activity();
    const isBusy = activity !== "idle";
    if (text.trim() === "" || (isBusy && this.chat.currentId === null)) return false;
    if (this.#tooLong(text)) {
      this.drafts.refuse(this.chat.currentId, { code: "message_too_large" });
      return false;
    }
    this.drafts.set("");
    if (this.chat.eviction) this.chat.reopen();
    if (steers && activity === "running") {
      this.chat.steer(text);
    } else if ((isBusy && !replaces && activity !== "stopping") || (!isBusy && this.chat.current?.queue.goesOn)) {
      this.chat.enqueue(text);
      this.speech.say("Your message waits for the answer");
    } else {
      const settings = this.chat.currentId === null ? this.settings.current : undefined;
      this.chat.say(text, { settings, onBusy: isBusy ? (replaces ? "cancel" : "queue") : undefined });
    }
    this.transcript.scroll.toLatest();
    return true;
  }

  /** Open a field for what waits; an event may have left out its words. */
  async editQueued(item) {
    const sessionId = this.chat.currentId;
    await this.#tell(async () => {
      const items = item.input === undefined ? (await api.getQueue(sessionId)).items : [item];
      const text = items.find(({ id }) => id === item.id)?.input;
      if (text !== undefined) this.queueEdits.keep(sessionId, item, text);
    });
    this.tick.value += 1;
  }

  /** @returns {boolean} whether the changed words are on their way */
  saveQueued(item, input) {
    if (input.trim() === "") return false;
    if (this.#tooLong(input)) {
      this.toasts.put(errorText({ code: "message_too_large" }));
      return false;
    }
    this.queueEdits.save(item);
    this.chat.changeQueue("queue.update", { item_id: item.id, input });
    return true;
  }

  /** What was typed for a message that went out meanwhile is the next one's. */
  settleQueueEdits() {
    const { current } = this.chat;
    if (current?.state !== "live") return;
    for (const text of this.queueEdits.settle(current.id, current.queue.items)) this.#return(current.id, text);
  }

  #return(sessionId, text) {
    this.drafts.putBefore(sessionId, text);
    this.toasts.put("That message went out before your change. What you typed is in the field.");
  }

  /** Another answer, or the rest of one; what is being written gives way to it. */
  ask(wish, more) {
    if (this.chat.eviction) this.chat.reopen();
    this.chat.ask({ ...wish, on_busy: "cancel" }, more);
    this.transcript.scroll.toLatest();
  }

  /** @returns {boolean} whether the message is on its way, in the place of the old one */
  sendEdit(message, text) {
    if (text.trim() === "") return false;
    if (this.#tooLong(text)) {
      this.toasts.put(errorText({ code: "message_too_large" }));
      return false;
    }
    this.ask({ input: text, parent_id: message.parentId }, { editOf: message.id });
    return true;
  }

  /** A new chat with the messages up to this one. */
  fork(messageId) {
    return this.#tell(async () => {
      const session = await api.fork(this.chat.currentId, messageId);
      this.chat.sessions.put(session);
      this.show(session.id);
      this.toasts.put("This is a new chat, with the messages up to there");
    });
  }

  /** Let the browser save a chat. @param {"md" | "json"} format */
  save(sessionId, format) {
    const link = document.createElement("a");
    link.href = api.exportPath(sessionId, format);
    link.download = ""; // the server names the file
    link.click();
  }

  /** @param {File} file that was saved as JSON, here or elsewhere */
  importFile(file) {
    return this.#tell(async () => {
      const session = await api.importSession(await file.text()).catch((error) => {
        const isUnfit = error instanceof api.Refused && [400, 413].includes(error.status);
        throw isUnfit ? new api.Refused("", error.status, { message: NO_CHAT }) : error;
      });
      this.chat.sessions.put(session);
      this.show(session.id);
    });
  }

  savePreset(preset) {
    return this.#tell(async () => {
      await this.settings.putPreset(preset);
      this.toasts.put(`Saved as “${preset.name}”`);
    });
  }

  deletePreset(name) {
    return this.#tell(() => this.settings.deletePreset(name));
  }

  /** @param {object} settings all of them @param {string | null} sessionId null: of new chats */
  saveSettings(settings, sessionId) {
    this.settings.save(settings, sessionId);
    this.toasts.put("Saved. The next answer is made with these settings.");
  }

  /** Have another model answer in the chat on screen, from the next question on. */
  chooseModel(name) {
    this.settings.chooseModel(name);
    this.toasts.put(`${name} answers from now on.`);
    this.tick.value += 1;
  }

  /** The whole chat on paper, or as a PDF: what is not here yet is loaded first. */
  async print(sessionId) {
    this.show(sessionId);
    this.#showAddressed(); // the event that the address has changed comes later
    while (this.chat.current?.hasMore !== false || !this.chat.current.loaded) {
      if (this.chat.currentId !== sessionId) return; // the user went on
      if (this.chat.current.loaded && !(await this.earlier())) return;
      await nextFrame();
    }
    this.transcript.drawNow();
    await document.fonts.ready;
    print();
  }

  logOut(where) {
    return this.#tell(async () => {
      await Promise.all(this.removals.pending.map(api.removeSession)); // while we may
      await api.logOut(where);
      this.socket.close();
      this.user.forget();
      location.replace(location.pathname); // nothing of theirs stays in memory
    });
  }

  /** Freeze what is painted and tell the server how much that was. */
  stop() {
    if (!["sending", "running"].includes(this.chat.activity())) return;
    const run = this.chat.current?.activeRun;
    this.chat.stop(run ? this.transcript.freeze(run) : null);
    this.transcript.drawNow();
  }

  rename(sessionId, title) {
    this.renaming.value = null;
    const clean = title.trim();
    if (clean && clean !== this.chat.sessions.get(sessionId)?.session.title) {
      this.chat.rename(sessionId, clean);
    }
  }

  remove(sessionId) {
    const wasOnScreen = this.chat.currentId === sessionId;
    this.removals.start(sessionId);
    if (wasOnScreen) this.show(null);
    const undo = () => {
      this.removals.forget(sessionId);
      if (wasOnScreen) this.show(sessionId);
    };
    this.toasts.put("Chat deleted", { label: "Undo", run: undo, isUndo: true });
  }

  /** @returns {Promise<boolean>} whether they are here now */
  earlier() {
    const conversation = this.chat.current;
    if (!conversation?.hasMore) return Promise.resolve(true);
    this.#loadingEarlier ??= this.#load("Earlier messages could not be loaded. Try again.", async () => {
      const before = conversation.path[0]?.id;
      const page = await api.listMessages(conversation.id, before);
      this.chat.earlier(conversation.id, page.messages, page.has_more, before);
    }).finally(() => (this.#loadingEarlier = null));
    return this.#loadingEarlier;
  }

  moreSessions() {
    return this.#loadSessions(this.nextCursor.value, "More chats could not be loaded. Try again.");
  }

  reconnect() {
    this.signedOut.value = false;
    this.socket.open();
  }

  /** What to say of a request over HTTP that failed. */
  refusalText(error) {
    if (error instanceof api.Refused) return errorText(error.error);
    if (error instanceof api.SignedOut) return errorText({ code: "token_invalid" });
    return "The server cannot be reached. Try again.";
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
      case "unchanged":
        if (change.attempt === "deleted") this.removals.forget(change.sessionId);
        this.toasts.put(unchangedText(change));
        break;
      case "notice":
        this.toasts.put(errorText(change.error));
        break;
      case "returned":
        this.queueEdits.drop({ id: change.itemId });
        if (change.error.code === "item_not_found") this.#return(change.sessionId, change.text);
        else this.#refused({ send: { sessionId: change.sessionId, text: change.text }, error: change.error });
        break;
      case "ended":
        this.drafts.over("response_in_progress", change.sessionId);
        break;
      case "restored":
        this.drafts.over("store_unavailable");
        // What there is to say follows at once, or there is nothing any more.
        setTimeout(() => this.announcement.show(this.chat.announced), ANNOUNCED_MS);
        break;
      case "announced":
        this.announcement.show(this.chat.announced);
        if (this.announcement.shown.value) this.speech.say(this.chat.announced.text);
        break;
      case "conversation":
        if (change.outcome === "replaced" && onScreen) this.transcript.replaced(change.run);
        if (change.frame && onScreen) this.speech.follow(change);
    }
    this.transcript?.changed();
    this.speech.ask(this.chat.asked);
    this.banner.health(this.chat.degraded);
    this.tick.value += 1;
  }

  #gone({ sessionId, wasOnScreen, isRefused, reason, isUnknown }) {
    if (isRefused) this.removals.finishing(sessionId);
    else this.removals.forget(sessionId);
    const draft = this.drafts.take(sessionId);
    if (draft && (wasOnScreen || isRefused)) this.drafts.putBefore(null, draft); // it goes on in the new chat
    if (!wasOnScreen) return;
    history.replaceState(null, "", location.pathname);
    this.drafts.load();
    if (isRefused) return; // its one message comes back, and says why
    const what = isUnknown ? "There is no such chat" : "This chat was deleted";
    this.toasts.put(reason ? `${what}: ${reason}` : what);
  }

  /** Nothing that was typed is lost: a refused message goes back to where it was written. */
  #refused({ send, error }) {
    if (send.editOf) this.edits.keep(send.editOf, send.text); // its question is being edited again
    if (send.text === "" || send.editOf) return this.toasts.put(errorText(error));
    const lost = send.sessionId === null || error.code === "session_not_found";
    const sessionId = lost ? null : send.sessionId;
    this.drafts.putBefore(sessionId, send.text);
    this.drafts.refuse(sessionId, error);
    if (sessionId !== this.chat.currentId) this.#pointTo(sessionId, errorText(error));
  }

  /** Say something of a chat that is not on screen, and lead there. */
  #pointTo(sessionId, text) {
    const title = this.chat.sessions.get(sessionId)?.session.title || "New chat";
    this.toasts.put(`“${title}”: ${text}`, { label: "Open", run: () => this.show(sessionId) });
  }

  /** Characters that JSON escapes may make a short question a long frame. */
  #tooLong(text) {
    const bytesOf = (string) => new TextEncoder().encode(string).length;
    const frame = this.chat.ready?.limits?.max_message_bytes ?? FRAME_BYTES;
    return bytesOf(text) > INPUT_BYTES || bytesOf(JSON.stringify(text)) > frame - FRAME_OVERHEAD;
  }

  // ---- connection ----

  #received(frame) {
    if (frame.type === "connection.ready" && !this.#meet(frame.user)) return;
    this.chat.receive(frame);
    if (frame.type === "connection.ready") this.#connected();
  }

  #connected() {
    this.chat.connected();
    this.#loadSessions(null, "The list of chats could not be loaded. Reload the page.");
    this.settings.load();
  }

  /** @returns {boolean} whether it is who was here before */
  #meet({ id }) {
    const isSame = this.user.meet(id, this.chat.ready?.user.id);
    if (!isSame) {
      this.socket.close();
      location.reload(); // nothing of theirs stays in memory
    }
    return isSame;
  }

  #socketChanged(state) {
    if (state === "open") {
      if (this.banner.connected()) this.speech.say("Reconnected");
    } else if (state === "login") this.#signOut();
    else if (state === "stopped") {
      this.banner.stopped(this.socket.stoppedText, { label: "Reconnect", run: () => this.reconnect() });
    } else this.banner.waiting();
  }

  /** A refused upgrade says nothing to a browser; an HTTP answer distinguishes a missing login from
  a lost server. */ #checkSignedIn() {
    api.listSessions().then(
      () => this.socket.reachable(),
      (error) => error instanceof api.SignedOut && this.#signOut(),
    );
  }

  #signOut() {
    this.signedOut.value = true;
    this.banner.clear();
  }

  #visibilityChanged() {
    if (this.signedOut.value && !document.hidden) this.reconnect(); // perhaps signed in meanwhile
    else this.socket.visibilityChanged();
    this.transcript?.changed();
  }

  // ---- what is read over HTTP ----

  #loadSessions(cursor, problem) {
    const held = cursor === null ? this.chat.sessions.sorted : [];
    return this.#load(problem, async () => {
      const page = await api.listSessions(cursor);
      this.signedOut.value = false;
      this.nextCursor.value = page.next_cursor;
      this.chat.listed(page.sessions, { held, complete: page.next_cursor === null });
    });
  }

  #refetch(sessionId) {
    return this.#load("A message could not be loaded. Reload the page.", async () => {
      this.chat.settle(sessionId, (await api.listMessages(sessionId)).messages);
    });
  }

  /** Do something over HTTP that the user asked for, and say why it did not work. */
  async #tell(act) {
    try {
      await act();
    } catch (error) {
      if (error instanceof api.SignedOut) this.#signOut();
      else this.toasts.put(this.refusalText(error));
    }
  }

  async #load(problem, read) {
    try {
      await read();
      this.socket.reachable();
      return true;
    } catch (error) {
      if (error instanceof api.SignedOut) this.#signOut();
      else this.toasts.put(problem);
      return false;
    }
  }

  // ---- the address ----

  #showAddressed() {
    const sessionId = /^#(ses_[\w-]+)$/.exec(location.hash)?.[1] ?? null;
    this.renaming.value = null;
    this.chat.open(sessionId);
    this.drafts.load();
    this.tick.value += 1;
  }
}

const nextFrame = () => new Promise(requestAnimationFrame);

function unchangedText({ title, attempt, error }) {
  const what = `“${title || "New chat"}” could not be ${attempt}`;
  return error.code === "invalid_field" ? `${what}: ${error.message}` : `${what}. Try again later.`;
}
