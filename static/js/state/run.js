/**
 * One response as one viewer follows it: the protocol's ordering rules, and nothing else.
 *
 * `last` is the number of the last event applied; `fence` is stored and sent back, never compared.
 * An event numbered `last + 1` is applied, an old one dropped; anything else is a gap, for which the
 * rest is asked once. A snapshot replaces, and the end is applied even over a gap. An
 * end that was not stored yet is not the last word: another one follows, or a snapshot goes on.
 */

import { toolCallsOf, withToolFrame } from "./tool-calls.js";

const MAX_REBUILDS = 2; // a text that is wrong a third time will not become right by asking again

/** @typedef {"applied" | "dropped" | "noted" | "replaced" | "resume" | "refetch" | "ended"} Outcome */

export class Run {
  #parts = [];
  #fresh = { text: true, reasoningText: true }; // no delta applied since number 1: texts start over
  #rebuilds = 0;

  /** @param {string} id @param {import("./message.js").Message} message the message it writes */
  constructor(id, message) {
    this.id = id;
    this.message = message;
    this.fence = 1;
    this.last = 0;
    this.ended = false;
    this.resuming = false;
    /** @type {{output_tokens: number, tokens_per_s: number} | null} while it is being written */
    this.progress = null;
    /** @type {{reason: string, position: number, eta_ms?: number} | null} */
    this.queue = null;
    /** @type {{by: string, owner?: string, endsInMs?: number} | null} */
    this.stopping = null;
  }

  /** Whether the end is stored, so that nothing else can follow. */
  get settled() {
    return this.ended && this.message.durable;
  }

  /** Where this viewer stands: what `session.subscribe` and `response.resume` carry. */
  position() {
    return { response_id: this.id, fence: this.fence, after_sequence_number: this.last };
  }

  /** Hide the text after `length` until the end settles it. A second stop may only hide more. */
  freeze(length) {
    this.stopping ??= { by: "user" };
    this.message.frozenAt = Math.min(length, this.message.frozenAt ?? Infinity);
    this.message.version += 1;
  }

  /** @returns {Outcome} what became of the frame; "resume" asks the caller to send our position */
  receive(frame) {
    switch (frame.type) {
      case "response.queued":
        this.queue = this.ended ? null : frame;
        this.message.version += 1;
        return "noted";
      case "response.progress":
        this.progress = this.ended ? null : frame;
        this.message.version += 1;
        return "noted";
      case "response.cancelling":
        return this.#cancelling(frame);
      case "response.output_text.snapshot":
        return this.#snapshot(frame);
      case "response.done":
        return this.#done(frame);
      default:
        return this.#numbered(frame);
    }
  }

  #numbered(frame) {
    const first = frame.first_sequence_number ?? frame.sequence_number;
    if (this.ended || frame.sequence_number <= this.last) return "dropped";
    if (this.#parts.length > 0) return "dropped"; // the snapshot in progress says more
    if (first !== this.last + 1) return this.#askAgain();
    this.resuming = false;
    this.last = frame.sequence_number;
    this.fence = frame.fence;
    return this.#apply(frame);
  }

  #apply(frame) {
    switch (frame.type) {
      case "response.created":
        this.#fresh = { text: true, reasoningText: true };
        return "applied";
      case "response.in_progress":
        this.queue = null;
        this.message.omittedMessages = frame.omitted_messages ?? 0;
        this.message.version += 1;
        return "applied";
      case "response.output_text.delta":
        this.message.endThought();
        return this.#append("text", frame);
      case "response.reasoning_text.delta":
        this.message.thinkingSince ??= Date.now();
        return this.#append("reasoningText", frame);
      case "response.output_item.added":
      case "response.output_item.done":
      case "response.function_call_arguments.delta":
      case "response.function_call_arguments.done":
        this.queue = null;
        this.message.endThought();
        this.message.toolCalls = withToolFrame(this.message.toolCalls, frame, this.message.text.length);
        this.message.version += 1;
        return "applied";
      default:
        return "applied"; // numbered but unknown: it counts, so that the next one is no gap
    }
  }

  #append(field, { text_offset, delta, logprobs }) {
    this.queue = null;
    if (logprobs) {
      const known = this.#fresh[field] ? [] : this.message.tokens;
      this.message.tokens = [...known, ...logprobs];
    }
    const held = this.message[field];
    const before = this.#fresh[field] ? held.slice(0, text_offset) : held;
    this.#fresh[field] = false;
    this.message[field] = before + delta;
    this.message.version += 1;
    if (text_offset + delta.length === this.message[field].length) return "applied";
    return this.#startOver();
  }

  #snapshot(frame) {
    if (this.settled) return "dropped";
    if (frame.part === 1) this.#parts = [];
    this.#parts.push(frame);
    if (frame.part < frame.parts) return "noted";
    const parts = this.#parts.splice(0);
    if (parts.length !== frame.parts) return this.#startOver();
    this.message.text = parts.map((part) => part.text).join("");
    const thoughts = parts.map((part) => part.reasoning_text).filter((part) => part !== undefined);
    // A continued answer that has thought nothing yet has what it had thought before.
    const thoughtBefore = this.#fresh.reasoningText && thoughts.length === 0;
    if (!thoughtBefore) this.message.reasoningText = thoughts.join("");
    this.message.tokens = []; // a snapshot brings none
    this.message.toolCalls = toolCallsOf(parts.flatMap((part) => part.output ?? []), this.message.toolCalls);
    this.message.version += 1;
    if (this.ended) this.#goOn();
    this.#fresh = { text: false, reasoningText: thoughtBefore };
    this.#rebuilds = 0;
    this.resuming = false;
    this.queue = null;
    this.last = frame.sequence_number;
    this.fence = frame.fence;
    return "replaced";
  }

  #cancelling(frame) {
    if (this.ended) return "dropped";
    const { by, owner, lease_ends_in_ms: endsInMs } = frame;
    this.stopping = { by, owner, endsInMs };
    this.message.version += 1;
    return "noted";
  }

  /** The end that came was never stored: another worker continues the answer. */ #goOn() {
    this.ended = false;
    this.message.durable = true;
    this.message.status = "in_progress";
    this.message.reason = this.message.textLength = null;
  }

  #done(frame) {
    const { response } = frame;
    if (this.settled && frame.sequence_number <= this.last) return "dropped";
    const message = this.message;
    const text = frame.text ?? message.text;
    const length = response.text_length ?? text.length;
    message.text = text.slice(0, length);
    message.frozenAt = null;
    message.durable = frame.durable !== false;
    message.update({
      status: MESSAGE_STATUS[response.status] ?? "completed",
      status_details: response.status_details,
      usage: response.usage,
      timings: response.timings,
      text_length: length,
    });
    this.ended = true;
    this.resuming = false;
    this.queue = this.stopping = this.progress = null;
    this.last = Math.max(this.last, frame.sequence_number);
    this.fence = frame.fence ?? this.fence;
    return message.incomplete ? "refetch" : "ended";
  }

  /** A gap: ask once for what follows `last`, and let deltas pass until the answer comes. */
  #askAgain() {
    if (this.resuming) return "dropped";
    this.resuming = true;
    return "resume";
  }

  /** The text held is not the server's: have the whole of it sent again. */
  #startOver() {
    this.#rebuilds += 1;
    this.last = 0;
    this.resuming = true;
    this.#parts = [];
    return this.#rebuilds <= MAX_REBUILDS ? "resume" : "dropped";
  }
}

const MESSAGE_STATUS = {
  queued: "in_progress",
  in_progress: "in_progress",
  completed: "completed",
  cancelled: "interrupted",
  incomplete: "interrupted",
  failed: "failed",
};
