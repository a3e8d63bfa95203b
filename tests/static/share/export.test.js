import assert from "node:assert/strict";
import { test } from "node:test";

import { exportOf } from "../../../static/js/share/export.js";

const said = (role, text, more = {}) => ({
  role,
  content: [{ type: "text", text }],
  status: "completed",
  created_at: 1000,
  ...more,
});

test("a share becomes an export whose messages follow one another", () => {
  const question = said("user", "2+2?");
  const answer = said("assistant", "4", { model: "m", status: "interrupted" });
  const made = exportOf({ id: "shr_x", title: "Sums", shared_at: 7, messages: [question, answer] });
  assert.deepEqual(made, {
    format: "parley.session",
    version: 1,
    session: { title: "Sums" },
    messages: [
      { id: "0", ...question },
      { id: "1", parent_id: "0", ...answer },
    ],
  });
});

test("what a share might say beyond its messages is left out", () => {
  const made = exportOf({ title: "", settings: {}, messages: [said("user", "Hi", { id: "msg_1", usage: {} })] });
  assert.deepEqual(made.session, { title: "" });
  assert.deepEqual(made.messages, [{ id: "0", ...said("user", "Hi") }]);
});

test("calls of tools, and what they gave back, are kept", () => {
  const tool_calls = [{ type: "function_call", id: "f", call_id: "c", name: "clock", arguments: "{}", status: "completed" }];
  const content = [{ type: "text", text: "noon", call_id: "c" }];
  const { messages } = exportOf({ title: "", messages: [said("assistant", "", { tool_calls }), said("tool", "", { content })] });
  assert.deepEqual(messages.map((one) => one.tool_calls), [tool_calls, undefined]);
  assert.deepEqual(messages[1].content, content);
});
