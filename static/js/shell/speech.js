/** What is said to those who listen instead of looking: boundaries only, for every token would be noise. */

import { signal } from "@preact/signals";

import { reasonText } from "../connection/protocol.js";
import { stateOf } from "../state/tool-calls.js";

export class Speech {
  /** "Generating", "Answer complete, 120 words", "Stopped". */
  spoken = signal("");
  #asked = new Set(); // ids of calls that were asked about

  say(text) {
    this.spoken.value = text;
  }

  /** A frame of an answer on screen, which its run has taken. */
  follow({ frame, run }) {
    if (frame.type === "response.created") this.say("Generating");
    if (frame.type !== "response.done") return;
    const words = run.message.text.split(/\s+/).filter(Boolean).length;
    const { status } = frame.response;
    const waits = (run.message.toolCalls ?? []).filter((call) => stateOf(call, false) === "waiting");
    if (waits.length > 0) this.say(`Waiting for the result of ${waits.map(({ name }) => name).join(", ")}`);
    else if (run.message.reason === "tool_calls") return; // the next answer goes on
    else if (status === "completed") this.say(`Answer complete, ${words} words`);
    else if (run.message.reason === "steered") this.say(reasonText("steered"));
    else this.say(status === "cancelled" ? "Stopped" : "The answer ended early");
  }

  /** Each question once: the answer waits for the user. @param {import("../state/tool-calls.js").ToolCall[]} calls */
  ask(calls) {
    const fresh = calls.filter(({ run, callId }) => run.said === null && !this.#asked.has(callId));
    for (const { callId } of fresh) this.#asked.add(callId);
    const names = fresh.map(({ name }) => name).join(", ");
    if (names) this.say(`The answer asks for your consent: may ${names} run?`);
  }
}
