/**
 * One session as this page follows it: the path of messages on screen, the runs that write to them,
 * and the place in the session's log (`epoch`, `offset`) from which a reconnect goes on.
 */

import { contentText } from "../connection/protocol.js";
import { Message } from "./message.js";
import { Queue } from "./queue.js";
import { Run } from "./run.js";

export class Conversation {
  /** @type {Message[]} oldest first */
  path = [];
  /** @type {Map<string, Run>} response id to run; ended runs stay, so that late frames are dropped */
  runs = new Map();
  /** @type {Map<string | null, string[]>} message id to the messages that follow it, in all branches */
  #children = new Map();
  queue = new Queue();
  epoch = null;
  offset = 0;
  hasMore = false; // older messages can be fetched
  loaded = false;
  /** "away": not subscribed; "joining": asked, no answer yet; "live": events arrive. */
  state = "away";
  missedUntil = 0; // what comes up to this offset happened before we were there
  /** @type {{reason?: string, isClosed: boolean} | null} an admin ended the connections that watch it */
  eviction = null;
  numAsked = 0; // how often it was subscribed to

  constructor(id) {
    this.id = id;
  }

  /** The `session.subscribe` frame that continues from what is held; without a position, a snapshot comes. */
  subscribeFrame({ fresh = false } = {}) {
    this.state = "joining";
    this.numAsked += 1;
    for (const run of this.runs.values()) run.resuming = false; // the answer covers every open question
    const frame = { type: "session.subscribe", session_id: this.id };
    if (this.epoch === null || fresh) return frame;
    const responses = [...this.runs.values()].filter((run) => !run.settled && run.last > 0);
    return {
      ...frame,
      after: { epoch: this.epoch, offset: this.offset },
      responses: responses.map((run) => run.position()),
    };
  }

  /** `session.subscribed`: what was missed follows, or a snapshot replaces what is held. */
  subscribed(frame) {
    this.state = "live";
    this.loaded = true;
    this.missedUntil = frame.offset;
    if (frame.recovered) return; // changes of the queue are among what follows
    this.queue.replace(frame.queue);
    this.epoch = frame.epoch;
    this.offset = frame.offset;
    if (frame.snapshot) this.#takeSnapshot(frame.snapshot, frame.active_responses ?? []);
  }

  /**
   * A numbered session event. Returns whether it is the next one: "apply", "drop", or "gap", after
   * which the caller subscribes again with the last good position.
   */
  place(frame) {
    if (this.state !== "live") return "drop"; // the answer to our subscribe will contain it
    if (frame.offset <= this.offset) return "drop";
    if (frame.offset !== this.offset + 1) return "gap";
    this.offset = frame.offset;
    return "apply";
  }

  find(messageId) {
    return this.path.find((message) => message.id === messageId);
  }

  /** Whether a new message has a place here: it is the first one, or follows one of the path. */
  hasPlaceFor(wire) {
    return wire.parent_id === null || this.find(wire.parent_id) !== undefined;
  }

  /** Put a new message after its parent; what followed the parent belongs to another branch. */
  add(wire) {
    const known = this.find(wire.id);
    if (known) {
      // The stored text of an answer in progress lags behind what its run has brought here.
      known.update(wire.status === "in_progress" ? { ...wire, content: [] } : wire);
      return known;
    }
    this.#remember(wire);
    const message = new Message(wire);
    if (wire.parent_id === null) this.path.length = 0;
    else this.cutAfter(wire.parent_id);
    this.path.push(message);
    return message;
  }

  /**
   * Once the server shows the message of one of these sends, the optimistic bubble gives way to it in place.
   * @param {import("../connection/outbox.js").Send[]} sends
   */
  bind(sends) {
    const answer = this.path.at(-1);
    const question = answer?.role === "user" ? answer : this.path.at(-2);
    if (question?.role !== "user" || (answer !== question && !answer.streaming)) return;
    const bound = new Set(this.path.map(({ key }) => key));
    const isMeant = ({ key, text }) =>
      !bound.has(key) && (text === question.text || (question.text === "" && question.textLength === text.length));
    const send = sends.find((one) => one.text !== "" && isMeant(one));
    if (!send) return;
    question.text = send.text;
    question.key = send.key;
  }

  /** The branch ends with this message. @returns {boolean} whether it is on the path at all */
  cutAfter(messageId) {
    const index = this.path.findIndex((message) => message.id === messageId);
    if (index >= 0) this.path.length = index + 1;
    return index >= 0;
  }

  /** The messages that stand for one another in the branches, oldest first, and this one among them. */
  siblings({ id, parentId }) {
    const known = this.#children.get(parentId) ?? [];
    return known.includes(id) ? known : [...known, id];
  }

  /** What a message shows of the branches; an event leaves out those before it. */
  #remember({ id, parent_id, sibling_ids }) {
    const known = this.#children.get(parent_id) ?? [];
    this.#children.set(parent_id, [...new Set([...(sibling_ids ?? known), id])]);
  }

  /** Put older messages, oldest first, before those on screen, unless another branch is shown by now. */
  prepend(wires, hasMore, before) {
    if (before !== undefined && this.path[0]?.id !== before) return;
    wires.forEach((wire) => this.#remember(wire));
    const older = wires.filter((wire) => !this.find(wire.id)).map((wire) => new Message(wire));
    this.path = [...older, ...this.path];
    this.hasMore = hasMore;
  }

  /** Take the stored text of messages whose content an event left out or a lost run never sent. */
  settle(wires) {
    for (const wire of wires) {
      const message = this.find(wire.id);
      if (!message || wire.status === "in_progress") continue;
      message.frozenAt = null;
      message.durable = true;
      message.update(wire);
      const run = this.runs.get(message.responseId);
      if (run) run.ended = true;
    }
  }

  /** The run of a response, made at its first frame; undefined if no message on the path belongs to it. */
  run(responseId, wire = null) {
    const known = this.runs.get(responseId);
    if (known) return known;
    const message =
      this.path.find((other) => other.responseId === responseId) ?? this.#placeholder(responseId, wire);
    if (!message) return undefined;
    const run = new Run(responseId, message);
    this.runs.set(responseId, run);
    return run;
  }

  /** The response being written, or the first one that waits: the oldest one that has not ended. */
  get activeRun() {
    return [...this.runs.values()].find((run) => !run.ended) ?? null;
  }

  /** `response.created` names its message; should that be unknown here, the answer is still shown. */
  #placeholder(responseId, wire) {
    if (!wire?.message_id || !this.hasPlaceFor(wire)) return undefined;
    return this.add({
      id: wire.message_id,
      parent_id: wire.parent_id,
      role: "assistant",
      status: "in_progress",
      response_id: responseId,
    });
  }

  /**
   * Replace the path, keeping the objects of messages that stay, and the text of those being written.
   * An answer of another branch may still be `active`.
   */
  #takeSnapshot({ messages, has_more }, active) {
    messages.forEach((wire) => this.#remember(wire));
    const written = [...this.runs.values()].map(({ message }) => message); // some in other branches
    const held = new Map([...written, ...this.path].map((message) => [message.id, message]));
    this.path = messages.map((wire) => {
      const message = held.get(wire.id);
      if (!message) return new Message(wire);
      const { content, ...rest } = wire;
      const writing = wire.status === "in_progress" && contentText(content).length <= message.text.length;
      message.update(writing ? rest : wire);
      if (!message.streaming) [message.frozenAt, message.durable] = [null, true];
      return message;
    });
    this.hasMore = has_more ?? false;
    const kept = new Map(this.path.map((message) => [message.responseId, message]));
    for (const [id, run] of this.runs) {
      const goesOn = kept.has(id) ? kept.get(id).streaming : active.includes(id);
      if (!goesOn) run.ended = true;
      else if (kept.has(id)) run.message = kept.get(id);
    }
    for (const id of active) if (!kept.has(id) && !this.runs.has(id)) this.#followElsewhere(id);
  }

  /** An answer of another branch, of which only the end will be seen: so much that it can be stopped. */
  #followElsewhere(responseId) {
    const message = new Message({ id: `of:${responseId}`, role: "assistant", status: "in_progress" });
    this.runs.set(responseId, new Run(responseId, message));
  }
}
