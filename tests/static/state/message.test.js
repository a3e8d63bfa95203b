import assert from "node:assert/strict";
import { test } from "node:test";

import { Message } from "../../../static/js/state/message.js";
import { assistantMessage, userMessage } from "../frames.js";

const text = (words) => [{ type: "text", text: words }];

test("words that were taken out of the session are gone here, too", () => {
  const message = new Message(userMessage({ content: text("secret"), text_length: 6 }));
  assert.equal(message.deleted, false);
  message.update(userMessage({ content: text(""), text_length: 0, redacted: ["message"] }));
  assert.equal(message.deleted, true);
  assert.equal(message.visibleText, "");
});

test("thoughts that were taken out are gone, and the words stay", () => {
  const message = new Message(assistantMessage({ status: "completed", content: text("Four."), reasoning: "secret" }));
  message.update(assistantMessage({ status: "completed", content: text("Four."), redacted: ["reasoning"] }));
  assert.equal(message.reasoningText, "");
  assert.equal(message.deleted, false);
  assert.equal(message.visibleText, "Four.");
});

test("what an instruction says is no answer that goes on", () => {
  const message = new Message(userMessage({ role: "developer", content: text("Be brief.") }));
  assert.equal(message.streaming, false);
  assert.equal(message.visibleText, "Be brief.");
});
