/**
 * One session as this page follows it: the path of messages on screen, the runs that write to them,
 * and the place in the session's log (`epoch`, `offset`) from which a reconnect goes on.
 */

import { contentText } from "../connection/protocol.js";
import { Message } from "./message.js";
import { Run } from "./run.js";

export class Conversation {
  /** @type {Message[]} oldest first */
  path = [];
  /** @type {Map<string, Run>} response id to run; ended runs stay, so that late frames are dropped */
  runs = new Map();
  epoch = null;
  offset = 0;
  hasMore = false; // older messages can be fetched
  loaded = false;
  /** "away": not subscribed; "joining": asked, no answer yet; "live": events arrive. */
  state = "away";
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
    if (frame.recovered) return;
    this.epoch = frame.epoch;
    this.offset = frame.offset;
    if (frame.snapshot) this.#takeSnapshot(frame.snapshot);
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

  /** Put a new message after its parent; what followed the parent belongs to another branch. */
  add(wire) {
    const known = this.find(wire.id);
    if (known) {
      // The stored text of an answer in progress lags behind what its run has brought here.
      known.update(wire.status === "in_progress" ? { ...wire, content: [] } : wire);
      return known;
    }
    const message = new Message(wire);
    const parent = this.path.findIndex((other) => other.id === wire.parent_id);
    if (parent >= 0) this.path.length = parent + 1;
    else if (wire.parent_id === null) this.path.length = 0;
    this.path.push(message);
    return message;
  }

  /** Put older messages, oldest first, before those on screen. */
  prepend(wires, hasMore) {
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

  /** The response being written or waiting, if any: the newest one that has not ended. */
  get activeRun() {
    return [...this.runs.values()].reverse().find((run) => !run.ended) ?? null;
  }

  /** `response.created` names its message; should that be unknown here, the answer is still shown. */
  #placeholder(responseId, wire) {
    if (!wire?.message_id) return undefined;
    return this.add({
      id: wire.message_id,
      parent_id: wire.parent_id,
      role: "assistant",
      status: "in_progress",
      response_id: responseId,
    });
  }

  /** Replace the path, keeping the objects of messages that stay, and the text of those being written. */
  #takeSnapshot({ messages, has_more }) {
    const held = new Map(this.path.map((message) => [message.id, message]));
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
      const message = kept.get(id);
      if (!message?.streaming) run.ended = true;
    }
  }
}
