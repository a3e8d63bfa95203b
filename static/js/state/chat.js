/**
 * Everything the page knows, changed by frames only: the session list, the conversations that were
 * opened, the messages on their way. No DOM and no clock, so it runs under `node --test`.
 *
 * Frames go in through `receive`, out through `send`; `onchange` tells the page what kind of thing
 * changed. Commands (`ask`, `stop`, `rename`, ...) only send: the answer changes the state.
 */

import { Conversation } from "./conversation.js";
import { toQueue, toSteer } from "./queue.js";
import { SessionList } from "./session-list.js";
import { askedCalls, goesOnByItself, withAnswer } from "./tool-calls.js";

const DUE_MS = 1500; // in which the next answer begins, or does not begin by itself
const MAX_CONVERSATIONS = 20; // kept in memory, so that going back to one shows it at once
/** These refuse the message itself, which therefore was never stored, whenever and wherever it is sent. */
const UNFIT = new Set(["invalid_field", "message_too_large", "context_length_exceeded"]);

/**
 * @typedef {object} Change
 * @property {"sessions" | "conversation" | "text" | "refused" | "unchanged" | "opened" | "gone" | "ended"
 *   | "restored" | "announced" | "notice" | "returned"} kind
 * @property {string} [sessionId]
 */

export class Chat {
  sessions = new SessionList();
  /** @type {Map<string, Conversation>} */
  conversations = new Map();
  /** @type {string | null} the session on screen; null shows an empty new chat */
  currentId = null;
  /** @type {object | null} the last `connection.ready` */
  ready = null;
  /** What the server said is not well: `{store: "unavailable", engine: "stalled"}`; empty when all is. */
  degraded = {};
  /** @type {object | null} what an admin has to say to all users */
  announced = null;
  stats = { applied: 0, dropped: 0, resumed: 0, replaced: 0 };
  #send;
  #refetch;
  #later;
  #onchange;
  /** @type {string | null} the session whose next answer is due, because the server has carried out what one called */
  #dueId = null;
  #connection = 0; // +1 with each, so that what a new one has sent again is not sent a third time

  /**
   * @param {object} parts
   * @param {(frame: object) => void} parts.send does nothing while there is no connection
   * @param {import("../connection/outbox.js").Outbox} parts.outbox
   * @param {(sessionId: string) => void} parts.refetch read stored messages over HTTP, then call `settle`
   * @param {(ms: number, act: () => void) => void} parts.later call `act` when the time is over
   * @param {(change: Change) => void} parts.onchange
   */
  constructor({ send, outbox, refetch = () => {}, later = () => {}, onchange = () => {} }) {
    this.outbox = outbox;
    this.#send = send;
    this.#refetch = refetch;
    this.#later = later;
    this.#onchange = onchange;
  }

  // ---- what is on screen ----

  /** @returns {Conversation | null} */
  get current() {
    return this.conversations.get(this.currentId) ?? null;
  }

  /** The messages on their way in a session (null: in the new chat) that have no bubble of the server's yet. */
  sendsOf(sessionId) {
    return this.outbox.sendsOf(sessionId).filter((send) => !send.as);
  }

  /** Those that are to wait in the session on screen, and of which the server has not said yet that they do. */
  get unqueued() {
    return this.outbox.sendsOf(this.currentId).filter((send) => send.as);
  }

  /** What the Send button may do: "idle", "sending" (no run yet), "running" or "stopping". */
  activity(sessionId = this.currentId) {
    const run = this.conversations.get(sessionId)?.activeRun;
    if (run) return run.stopping ? "stopping" : "running";
    const [send] = this.sendsOf(sessionId);
    if (send) return send.stopped ? "stopping" : "sending";
    return sessionId !== null && sessionId === this.#dueId ? "running" : "idle";
  }

  /** The calls of tools on screen that wait for the user's word. @returns {import("./tool-calls.js").ToolCall[]} */
  get asked() {
    return askedCalls(this.current?.activeRun?.message);
  }

  // ---- commands ----

  /** Show a session, or with null an empty new chat; viewers get its events until another is shown. */
  open(sessionId) {
    if (sessionId === this.currentId) return;
    const left = this.current;
    this.currentId = sessionId;
    if (left) this.#leave(left);
    if (sessionId !== null) this.#watch(this.#conversation(sessionId));
    this.sessions.mark(sessionId, { unseen: false });
    this.#changed("conversation", sessionId);
  }

  /**
   * Send a message to the session on screen, making that session first if it is a new chat.
   * @param {string} text
   * @param {{settings?: object, onBusy?: "queue" | "cancel"}} [how] `settings` of that session; `onBusy`: wait
   *   for the answer that is being written, or end it
   */
  say(text, { settings, onBusy } = {}) {
    this.ask({ input: text, ...(onBusy && { on_busy: onBusy }) }, { settings });
  }

  /**
   * Ask for an answer in the session on screen.
   * @param {object} wish what a `response.create` says beyond its names: `input`, with `parent_id` for a
   *   message that is edited, or `regenerate_of`, or `continue_of`; and `settings`, `on_busy`
   * @param {{settings?: object, editOf?: string}} [more] settings of the session to be made, or the
   *   message that is edited
   */
  ask(wish, { settings, editOf } = {}) {
    const send = this.outbox.addSend(wish, this.currentId, { settings, editOf });
    this.outbox.framesOf(send).forEach(this.#send);
    this.#changed("conversation", this.currentId);
  }

  /** Have a message asked after what is being written in the session on screen, and after what waits. */
  enqueue(text) {
    this.#hand(text, toQueue(this.currentId));
  }

  /** End the answer that is being written, and go on with these words. */
  steer(text) {
    this.#hand(text, toSteer(this.current.activeRun.id));
  }

  /**
   * Change what waits in the session on screen.
   * @param {"queue.update" | "queue.remove" | "queue.send"} type
   * @param {{item_id?: string, input?: string, place?: number}} fields
   */
  changeQueue(type, fields = {}) {
    this.#sendKept({ type, session_id: this.currentId, ...fields });
  }

  /** Show the branch of the session on screen that goes through this message, in all tabs. */
  switchTo(messageId) {
    // Not kept for another connection: who knows what is on screen by then.
    this.#send({ type: "session.update", session_id: this.currentId, branch: messageId });
  }

  /** For all answers of the session from now on. */
  configure(sessionId, settings) {
    this.#sendKept({ type: "session.update", session_id: sessionId, settings });
  }

  pin(sessionId, pinned) {
    this.#sendKept({ type: "session.update", session_id: sessionId, pinned });
  }

  /**
   * Stop the answer on screen. `seen` is what the user saw of it: the text is frozen there at once,
   * and the server cuts the stored text at the same place.
   * @param {{length: number, number: number} | null} seen
   */
  stop(seen) {
    const run = this.current?.activeRun;
    const [send] = this.sendsOf(this.currentId);
    if (run) this.#stopRun(run, seen);
    else if (send) this.#stopSend(send);
    else if (this.activity() !== "idle") this.#send({ type: "stop", session_id: this.currentId }); // its next answer may have begun by now
    this.#changed("conversation", this.currentId);
  }

  /** Say whether a call of a tool may run. @param {"allow" | "allow_session" | "deny"} decision */
  consent(message, call, decision) {
    if (call.run?.status !== "awaiting_consent" || call.run.said !== null) return;
    this.#said(message, call, decision);
    const named = { response_id: message.responseId, call_id: call.callId };
    this.#sendKept({ type: "tool_call.consent", ...named, decision });
  }

  /** Stop an answer that waits for its turn: its question stays without one. */
  withdraw(run) {
    this.#stopRun(run, null);
    this.#changed("conversation", this.currentId);
  }

  /** Shown at once, and taken back should the server refuse it for good. */
  rename(sessionId, title) {
    this.sessions.rename(sessionId, title);
    this.#sendKept({ type: "session.update", session_id: sessionId, title });
    this.#changed("sessions");
  }

  /** Gone from view at once, and shown again should the server refuse it for good. */
  remove(sessionId) {
    this.#sendKept({ type: "session.delete", session_id: sessionId });
    this.sessions.mark(sessionId, { removed: true });
    this.#leaveForGood(sessionId);
  }

  /**
   * A socket opened: take up the session on screen where it was, and send again what has no answer.
   * A message can only be sent to a session one watches, also if another is on screen.
   */
  connected() {
    this.#connection += 1;
    for (const conversation of this.conversations.values()) conversation.state = "away";
    const waiting = [...this.outbox.sends.values()].map((send) => send.sessionId);
    for (const id of new Set([this.currentId, ...waiting])) {
      if (id !== null) this.#watch(this.#conversation(id));
    }
    this.outbox.unanswered().forEach(this.#send);
  }

  /** The connection was closed by an eviction: those that it names stay closed until they are reopened. */
  evicted() {
    for (const { eviction } of this.conversations.values()) if (eviction) eviction.isClosed = true;
    this.#changed("conversation", this.currentId);
  }

  /** Why the session on screen is not watched, or null. */
  get eviction() {
    return this.current?.eviction?.isClosed ? this.current.eviction : null;
  }

  /** Watch the session on screen again although an admin had closed it. */
  reopen() {
    this.current.eviction = null;
    this.#subscribe(this.current);
    this.#changed("conversation", this.currentId);
  }

  // ---- what comes over HTTP ----

  /**
   * A page of `GET /v1/sessions`; `complete` if there is no further one. For the newest, `held` are the
   * entries of the list as they were when it was asked for.
   */
  listed(sessions, { complete = false, held = [] } = {}) {
    this.sessions.putPage(sessions, { complete, held, keepId: this.currentId });
    this.#changed("sessions");
  }

  /** A page of `GET /v1/sessions/{id}/messages` before the message `before`, the oldest one held then. */
  earlier(sessionId, messages, hasMore, before) {
    this.conversations.get(sessionId)?.prepend(messages, hasMore, before);
    this.#changed("conversation", sessionId);
  }

  /** The stored messages, for texts that no frame brought. */
  settle(sessionId, messages) {
    this.conversations.get(sessionId)?.settle(messages);
    this.#changed("conversation", sessionId);
  }

  // ---- frames from the server ----

  receive(frame) {
    const answered = this.outbox.settle(frame);
    switch (frame.type) {
      case "connection.ready":
        this.ready = frame;
        this.degraded = {};
        this.announced = null;
        return this.#changed("restored");
      case "connection.degraded":
      case "connection.restored":
        return this.#health(frame);
      case "notice.updated":
        this.announced = frame.notice;
        return this.#changed("announced");
      case "session.created":
        return this.#sessionCreated(frame);
      case "session.subscribed":
        return this.#sessionSubscribed(frame);
      case "session.updated":
      case "session.deleted":
        return this.#sessionEvent(frame, answered);
      case "session.evicted":
        return this.#evicted(frame);
      case "session.activity":
        return this.#sessionActivity(frame);
      case "message.created":
      case "message.updated":
        return this.#messageEvent(frame);
      case "queue.updated":
        return this.#queueEvent(frame);
      case "queue.accepted":
      case "response.steer.accepted":
        this.outbox.removeSend(frame.event_id);
        return this.#changed("sessions");
      case "response.created":
        return this.#responseCreated(frame);
      case "error":
        return this.#error(frame.error, answered);
      default:
        if (frame.type.startsWith("response.")) this.#responseEvent(frame);
    }
  }

  #sessionCreated(frame) {
    this.sessions.put(frame.session);
    this.#changed("sessions");
    const send = this.outbox.sends.get(frame.event_id);
    if (!send || send.sessionId !== null) return;
    const conversation = this.#conversation(frame.session.id);
    conversation.subscribed({ ...frame, recovered: false });
    const wasOnScreen = this.currentId === null;
    if (wasOnScreen) this.currentId = conversation.id;
    if (frame.replayed) this.#subscribe(conversation); // something may have happened in it since
    this.outbox.updateSend(send, { sessionId: conversation.id });
    this.outbox.framesOf(send).forEach(this.#send);
    if (wasOnScreen) this.#changed("opened", conversation.id);
  }

  #sessionSubscribed(frame) {
    const conversation = this.conversations.get(frame.session_id);
    if (!conversation || conversation.state === "away") return;
    conversation.eviction = null;
    conversation.subscribed(frame);
    if (frame.snapshot) this.sessions.put(frame.snapshot.session);
    if (conversation.path.some((message) => !message.streaming && message.incomplete)) {
      this.#refetch(conversation.id);
    }
    conversation.bind(this.sendsOf(conversation.id));
    this.#changed("conversation", conversation.id);
    this.#changed("sessions");
  }

  /** The close that follows makes it count. What was missed of it is history, and nobody was closed out. */
  #evicted(frame) {
    const conversation = this.conversations.get(frame.session_id);
    this.#inOrder(frame.session_id, frame);
    const isHistory = frame.offset <= (conversation?.missedUntil ?? 0);
    if (conversation && !isHistory) conversation.eviction = { reason: frame.reason, isClosed: false };
  }

  #sessionEvent(frame, answered) {
    const id = frame.session?.id ?? frame.session_id;
    const isNext = this.#inOrder(id, frame);
    if (frame.type === "session.updated") {
      if (isNext) this.#follows(this.conversations.get(id), frame.session.head);
      if (answered) this.sessions.mark(id, { was: undefined }); // the server has named it, and cleaned the name
      this.sessions.put(frame.session);
      return this.#changed("sessions");
    }
    this.sessions.bury(id);
    this.#gone(id, { reason: frame.reason });
  }

  /** Show the branch of the session's `head`: where the next question goes is where the page must end. */
  #follows(conversation, head) {
    if (head === undefined || head === (conversation.path.at(-1)?.id ?? null)) return;
    if (conversation.cutAfter(head)) return this.#changed("conversation", conversation.id);
    this.#subscribe(conversation, { fresh: true });
  }

  #sessionActivity({ session_id: id, active, status }) {
    const ended = !active && status !== undefined;
    const unseen = id !== this.currentId && (ended || (this.sessions.get(id)?.unseen ?? false));
    this.sessions.mark(id, { active, unseen });
    this.#changed(active ? "sessions" : "ended", id);
  }

  #messageEvent(frame) {
    const conversation = this.conversations.get(frame.session_id);
    if (!conversation || !this.#inOrder(frame.session_id, frame)) return;
    const { message } = frame;
    if (frame.type === "message.created") {
      if (!conversation.hasPlaceFor(message)) return this.#subscribe(conversation, { fresh: true });
      this.#messageCreated(conversation, message);
    } else {
      const begins = message.status === "in_progress"; // an answer goes on: its branch is the one in use
      if (begins && !conversation.cutAfter(message.id)) return this.#subscribe(conversation, { fresh: true });
      if (!conversation.find(message.id)) return this.#endedElsewhere(conversation, message);
      this.#messageUpdated(conversation, message);
    }
    this.#changed("conversation", conversation.id);
  }

  #queueEvent({ session_id: id, queue, ...frame }) {
    const conversation = this.conversations.get(id);
    if (!conversation || !this.#inOrder(id, frame)) return;
    conversation.queue.take(queue);
    this.#changed("conversation", id);
  }

  /** The end of an answer in a branch that is not on screen. */
  #endedElsewhere(conversation, { response_id: id }) {
    const run = conversation.runs.get(id);
    if (run) run.ended = true;
    this.#changed("conversation", conversation.id);
  }

  #messageCreated(conversation, wire) {
    const message = conversation.add(wire);
    conversation.bind(this.sendsOf(conversation.id));
    this.sessions.touch(conversation.id, message.createdAt);
    this.#changed("sessions");
    if (wire.content_omitted && message.incomplete) this.#refetch(conversation.id);
  }

  /** The end of a run comes first and settles the text; only a run we lost sight of is settled here. */
  #messageUpdated(conversation, wire) {
    const run = conversation.runs.get(wire.response_id);
    const lost = wire.status !== "in_progress" && !run?.settled;
    const message = conversation.add(wire);
    if (!run?.stopping) message.frozenAt = null;
    message.durable = true;
    if (!lost) return;
    if (run && !wire.content_omitted) run.ended = true;
    if (message.incomplete) this.#refetch(conversation.id);
  }

  #responseCreated(frame) {
    const { response, idempotency_key: key } = frame;
    const send = this.outbox.removeSend(key);
    const conversation = this.conversations.get(response.session_id);
    const run = conversation?.run(response.id, response);
    if (!run) return this.#changed("sessions");
    if (send?.stopped) run.freeze(run.message.text.length);
    if (conversation.id === this.#dueId) this.#dueId = null;
    this.#follow(conversation, run, frame);
    if (conversation !== this.current) this.#leave(conversation); // it was watched to be sent to
  }

  #responseEvent(frame) {
    const id = frame.response_id ?? frame.response?.id;
    if (!id) return; // an early stop was heard; its send already shows it
    const named = this.conversations.get(frame.response?.session_id);
    for (const conversation of named ? [named] : this.conversations.values()) {
      const run = conversation.state === "away" ? undefined : conversation.run(id);
      if (run) return this.#follow(conversation, run, frame);
    }
    this.stats.dropped += 1;
  }

  /** Apply a frame to its run, count what became of it, and ask for what is missing. */
  #follow(conversation, run, frame) {
    const outcome = run.receive(frame);
    if (outcome === "applied" || outcome === "ended" || outcome === "refetch") this.stats.applied += 1;
    if (outcome === "dropped") this.stats.dropped += 1;
    if (outcome === "replaced") this.stats.replaced += 1;
    if (outcome === "resume") {
      this.stats.resumed += 1;
      this.#send({ type: "response.resume", event_id: `resume:${run.id}`, ...run.position() });
    }
    if (outcome === "refetch") this.#refetch(conversation.id);
    if (frame.type === "response.done" && run.ended && goesOnByItself(run.message)) this.#expect(conversation.id);
    const isText = outcome === "applied" && frame.type === "response.output_text.delta";
    const kind = isText ? "text" : "conversation";
    this.#changed(kind, conversation.id, { run, frame, outcome });
  }

  /** Until the next answer begins, which is a moment, the session is as busy as before: no button comes and goes. */
  #expect(sessionId) {
    this.#dueId = sessionId;
    this.#later(DUE_MS, () => {
      if (this.#dueId === sessionId) this.#dueId = null;
      this.#changed("conversation", sessionId);
    });
  }

  #health({ store, engine }) {
    const states = { ...this.degraded, ...(store && { store }), ...(engine && { engine }) };
    this.degraded = Object.fromEntries(Object.entries(states).filter(([, state]) => state !== "ok"));
    this.#changed(store === "ok" ? "restored" : "sessions");
  }

  /** An error belongs to a message on its way, to a subscription, to a resume, or to the whole page. */
  #error(error, answered) {
    const [purpose, id] = (error.event_id ?? "").split(":");
    const send = this.outbox.sends.get(error.event_id);
    if (send?.as && error.retry_after_ms !== undefined && error.code !== "queue_full") return this.#handLater(send, error);
    if (send) return this.#refused(this.outbox.removeSend(send.key), error);
    if (purpose === "subscribe" && error.code === "session_not_found") {
      return this.#gone(id, { isUnknown: !this.sessions.get(id) });
    }
    if (purpose === "subscribe" && error.retry_after_ms !== undefined) {
      return this.#subscribeLater(id, error);
    }
    if (purpose === "unsubscribe") return; // it was left already
    if (purpose === "resume") return this.#refetchRun(id);
    const isFull = error.code === "queue_full" && answered?.type.startsWith("queue."); // it may be so for hours
    if (answered && error.retry_after_ms !== undefined && !isFull) return this.#sendLater(answered, error);
    if (answered?.type === "tool_call.consent") return this.#consentRefused(answered, error);
    if (answered?.type === "stop") return this.#refetchRun(answered.response_id);
    if (answered) return this.#takeBack(answered, error);
    if (error.event_id && purpose !== "subscribe") return; // settled, or replaced by a newer name
    this.#changed("notice", undefined, { error });
  }

  /** A session that was made for an unfit message alone goes with it, if it is known to hold nothing else. */
  #refused(send, error) {
    const { sessionId: id, sessionKey } = send;
    const { state, path } = this.conversations.get(id) ?? {};
    if (sessionKey !== null && UNFIT.has(error.code) && state === "live" && path.length === 0) {
      const wasOnScreen = id === this.currentId;
      this.remove(id);
      this.#changed("gone", id, { wasOnScreen, isRefused: true });
      send = { ...send, sessionId: null };
    }
    this.#changed("refused", send.sessionId, { send, error });
  }

  /** Not now: the frame stays unanswered, and is sent again when the server says that it is worthwhile. */
  #sendLater(frame, { retry_after_ms: ms }) {
    this.outbox.keep(frame);
    this.#retry(ms, () => (this.outbox.keeps(frame) ? [frame] : []));
  }

  /** Somebody was faster, which the card shows, or the question stands as before. */
  #consentRefused({ response_id: responseId, call_id: callId }, error) {
    for (const { runs } of this.conversations.values()) {
      const message = runs.get(responseId)?.message;
      const call = message?.toolCalls?.find((one) => one.callId === callId);
      if (call?.run) this.#said(message, call, null);
    }
    this.#changed("notice", undefined, { error });
  }

  #said(message, call, decision) {
    withAnswer(call, decision);
    message.version += 1;
    this.#changed("conversation", this.currentId);
  }

  /** A change or a deletion was refused for good: the list says again what the server says. */
  #takeBack({ type, session_id: id, title, item_id: itemId, input }, error) {
    if (input !== undefined) return this.#changed("returned", id, { text: input, itemId, error });
    if (error.code === "item_not_found") return; // it was asked or withdrawn meanwhile, as the queue shows
    if (type.startsWith("queue.")) return this.#changed("notice", undefined, { error });
    if (error.code === "session_not_found") return this.#gone(id); // somebody was faster
    const isRename = title !== undefined;
    const attempt = type === "session.delete" ? "deleted" : isRename ? "renamed" : "changed";
    if (attempt === "deleted") this.sessions.mark(id, { removed: false });
    if (attempt === "renamed") this.sessions.unname(id);
    const session = this.sessions.get(id)?.session;
    if (session) this.#changed("unchanged", id, { title: session.title, attempt, error });
  }

  // ---- helpers ----

  /** Give words to the server, which keeps them until they are asked. */
  #hand(text, as) {
    const send = this.outbox.addSend({ input: text }, this.currentId, { as });
    this.outbox.framesOf(send).forEach(this.#send);
    this.#changed("conversation", this.currentId);
  }

  /** Not now: the server may have kept the words all the same, so they go out again under their key. */
  #handLater(send, { retry_after_ms: ms }) {
    this.#retry(ms, () => (this.outbox.sends.has(send.key) ? this.outbox.framesOf(send) : []));
  }

  /** Send what is unanswered by then, unless a new connection has sent it meanwhile. */
  #retry(ms, unanswered) {
    const connection = this.#connection;
    this.#later(ms, () => {
      if (connection === this.#connection) unanswered().forEach(this.#send);
    });
  }

  #conversation(sessionId) {
    const known = this.conversations.get(sessionId);
    if (known) return known;
    const oldest = [...this.conversations.values()].find((other) => other.state === "away");
    if (oldest && this.conversations.size >= MAX_CONVERSATIONS) this.conversations.delete(oldest.id);
    const conversation = new Conversation(sessionId);
    this.conversations.set(sessionId, conversation);
    return conversation;
  }

  /** Subscribe, unless an admin has closed it. */
  #watch(conversation) {
    if (!conversation.eviction?.isClosed) this.#subscribe(conversation);
  }

  #subscribe(conversation, how) {
    const frame = conversation.subscribeFrame(how);
    this.stats.resumed += frame.responses?.length ?? 0;
    this.#send({ event_id: `subscribe:${conversation.id}`, ...frame });
  }

  /** A session that cannot be read now, unless it is left, read or asked for again meanwhile. */
  #subscribeLater(sessionId, { retry_after_ms: ms }) {
    const numAsked = this.conversations.get(sessionId)?.numAsked;
    this.#later(ms, () => {
      const conversation = this.conversations.get(sessionId);
      if (conversation?.state === "joining" && conversation.numAsked === numAsked) this.#subscribe(conversation);
    });
  }

  /** Stop watching, keeping what is held; a message on its way still needs the session watched. */
  #leave(conversation) {
    if (conversation.state === "away" || this.sendsOf(conversation.id).length > 0) return;
    conversation.state = "away";
    const event_id = `unsubscribe:${conversation.id}`;
    this.#send({ type: "session.unsubscribe", event_id, session_id: conversation.id });
  }

  /** Whether a session event is the next one of its log; after a hole, ask for what is missing. */
  #inOrder(sessionId, frame) {
    const conversation = this.conversations.get(sessionId);
    if (!conversation) return false;
    const place = conversation.place(frame);
    if (place === "gap") this.#subscribe(conversation);
    return place === "apply";
  }

  #gone(sessionId, details = {}) {
    const wasOnScreen = sessionId === this.currentId;
    this.#forget(sessionId);
    this.#changed("gone", sessionId, { wasOnScreen, ...details });
  }

  #forget(sessionId) {
    this.sessions.delete(sessionId);
    this.#leaveForGood(sessionId);
  }

  #leaveForGood(sessionId) {
    this.conversations.delete(sessionId);
    if (this.currentId === sessionId) this.currentId = null;
    for (const send of this.outbox.sendsOf(sessionId)) {
      this.outbox.removeSend(send.key);
      this.#changed("refused", sessionId, { send, error: { code: "session_not_found" } });
    }
    this.#changed("sessions");
    this.#changed("conversation", this.currentId);
  }

  #stopRun(run, seen) {
    if (run.stopping) return;
    run.freeze(seen?.length ?? run.message.text.length);
    const number = seen?.number ?? run.last;
    this.#sendKept({ type: "stop", response_id: run.id, seen_sequence_number: number });
  }

  /** Before `response.created`: the server keeps the wish. Before the session exists, nothing was asked yet. */
  #stopSend(send) {
    if (!send || send.stopped) return;
    this.outbox.updateSend(send, { stopped: true });
    if (send.sessionId !== null) this.#send(this.outbox.framesOf(send).at(-1));
  }

  #refetchRun(responseId) {
    for (const conversation of this.conversations.values()) {
      if (conversation.runs.has(responseId)) this.#refetch(conversation.id);
    }
  }

  #sendKept(frame) {
    this.#send(this.outbox.addFrame(frame));
  }

  #changed(kind, sessionId, details = {}) {
    this.#onchange({ kind, sessionId, ...details });
  }
}
