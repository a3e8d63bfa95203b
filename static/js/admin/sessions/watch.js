/**
 * One session watched live and read-only: the same frames and the same rules as in the chat, and no
 * frame that could change anything. Opening it is written to the audit log by the server.
 */

import { signal } from "@preact/signals";

import { Socket } from "../../connection/socket.js";
import { Conversation } from "../../state/conversation.js";

export class Watch {
  /** +1 per change; the view reads `conversation` again. */
  tick = signal(0);
  /** What to say instead of the conversation; empty when it is there. */
  note = signal("Connecting …");

  /** @param {import("../frame/api.js").AdminApi} api @param {string} sessionId */
  constructor(api, sessionId) {
    this.conversation = new Conversation(sessionId);
    this.socket = new Socket({
      connect: () => api.connect(),
      onopen: () => this.#subscribe(),
      onframe: (frame) => this.#take(frame),
      onstate: (state) => this.#state(state),
      visible: () => document.visibilityState === "visible",
    });
    this.socket.open();
  }

  /** Stop watching; nothing is said to anybody. */
  close() {
    this.socket.close();
  }

  #subscribe() {
    this.socket.send({ ...this.conversation.subscribeFrame(), observe: true });
  }

  #state(state) {
    if (state === "waiting" || state === "connecting") this.note.value = "Connecting …";
    if (state === "stopped") this.note.value = this.socket.stoppedText;
    if (state === "login") this.note.value = "The server does not accept this token any more.";
  }

  #take(frame) {
    const { conversation } = this;
    switch (frame.type) {
      case "session.subscribed":
        conversation.subscribed(frame);
        this.note.value = conversation.path.length ? "" : "Nothing was said yet.";
        break;
      case "message.created":
      case "message.updated":
        if (conversation.place(frame) === "gap") return this.#subscribe();
        conversation.add(frame.message);
        this.note.value = "";
        break;
      case "session.deleted":
        this.note.value = "This chat was deleted.";
        break;
      case "error":
        this.note.value = frame.error.message;
        break;
      default:
        this.#follow(frame);
    }
    this.tick.value += 1;
  }

  /** A frame of an answer. */
  #follow(frame) {
    const id = frame.response_id ?? frame.response?.id;
    const run = id && this.conversation.run(id, frame.response);
    if (!run) {
      // A session event of another kind still has its place in the log.
      if (frame.offset && this.conversation.place(frame) === "gap") this.#subscribe();
      return;
    }
    const outcome = run.receive(frame);
    if (outcome === "resume") this.socket.send({ type: "response.resume", ...run.position() });
    if (outcome === "refetch") this.#subscribe();
  }
}
