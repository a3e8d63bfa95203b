/**
 * One message of a conversation, as this page holds it. `text` is what the server said so far;
 * `frozenAt` hides the text after the point where the user pressed Stop, until the end settles it.
 */

import { contentText } from "../connection/protocol.js";
import { outputsOf, storedCalls } from "./tool-calls.js";

export class Message {
  /** @param {object} wire the `message` object of the protocol */
  constructor(wire) {
    this.id = wire.id;
    this.key = wire.id; // what the view keys its element by; an optimistic bubble keeps its own
    this.role = wire.role;
    this.text = "";
    this.reasoningText = "";
    /** @type {number | null} when its first text came, in milliseconds since 1970 */
    this.thinkingSince = null;
    /** @type {number | null} how long that took, once something else came */
    this.thoughtMs = null;
    /** @type {{token: string, logprob: number, top: {token: string, logprob: number}[]}[]} where they were asked for */
    this.tokens = [];
    /** @type {import("./tool-calls.js").ToolCall[] | null} */
    this.toolCalls = null;
    /** @type {object[]} of a tool's message: what each call of the answer before gave back */
    this.outputs = [];
    /** @type {number | null} */
    this.frozenAt = null;
    this.durable = true;
    this.omittedMessages = 0;
    this.version = 0; // +1 per change, so that the view redraws only what changed
    this.update(wire);
  }

  /** Take over what a wire message says; a missing or omitted content leaves the text alone. */
  update(wire) {
    this.parentId = wire.parent_id ?? this.parentId ?? null;
    this.responseId = wire.response_id ?? this.responseId ?? null;
    this.status = wire.status ?? this.status ?? "completed";
    this.usage = wire.usage ?? this.usage ?? null;
    this.timings = wire.timings ?? this.timings ?? null;
    this.reason = wire.status_details?.reason ?? this.reason ?? null;
    this.createdAt = wire.created_at ?? this.createdAt ?? 0;
    this.settings = wire.settings ?? this.settings ?? null;
    this.restarts = wire.restarts ?? this.restarts ?? 0;
    this.exactness = wire.exactness ?? this.exactness ?? "exact";
    this.model = wire.model ?? this.model ?? "";
    this.redacted = wire.redacted ?? this.redacted ?? [];
    this.textLength = wire.text_length ?? this.textLength ?? null;
    if (wire.content?.length > 0 && !wire.content_omitted) this.text = contentText(wire.content);
    if (wire.reasoning !== undefined && !wire.content_omitted) this.reasoningText = wire.reasoning;
    if (this.redacted.includes("reasoning")) this.reasoningText = "";
    if (wire.content?.length > 0 && !wire.content_omitted && !this.streaming) {
      this.toolCalls = storedCalls(this.toolCalls, wire.tool_calls ?? [], wire.tool_outputs ?? []);
    }
    if (this.role === "tool" && !wire.content_omitted) this.outputs = outputsOf(wire.content);
    if (!this.streaming) this.endThought();
    this.version += 1;
  }

  /** The model goes on to something else, or has ended. */
  endThought() {
    if (this.thinkingSince !== null) this.thoughtMs ??= Date.now() - this.thinkingSince;
  }

  /** What stands above what it thinks, or has thought. */
  get thoughtTitle() {
    if (this.thinking) return "Thinking";
    return this.thoughtMs === null ? "Thought" : `Thought for ${lasting(this.thoughtMs)}`;
  }

  get thinking() {
    return this.streaming && this.reasoningText !== "" && this.thoughtMs === null && this.text === "";
  }

  /** Whether a client has taken its words out of the session. */
  get deleted() {
    return this.redacted?.includes("message") ?? false;
  }

  get streaming() {
    return this.role === "assistant" && this.status === "in_progress";
  }

  /** Whether the text is shorter or longer than the server says it is. */
  get incomplete() {
    return this.textLength !== null && this.text.length !== this.textLength;
  }

  /** What may be shown: after a stop, nothing beyond the point the user had seen. */
  get visibleText() {
    return this.frozenAt === null ? this.text : this.text.slice(0, this.frozenAt);
  }
}

/** A while, for a reader. */
export function lasting(milliseconds) {
  const seconds = Math.max(1, Math.round(milliseconds / 1000));
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
}
