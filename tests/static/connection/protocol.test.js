import assert from "node:assert/strict";
import { test } from "node:test";

import { closePolicy, contentText, endText, errorText, modelState, newKey, reasonText } from "../../../static/js/connection/protocol.js";

test("an error says what happened and what to do", () => {
  assert.match(errorText({ code: "message_too_large" }), /too long\. Shorten it/);
});

test("an error counts down while there is something to wait for", () => {
  const error = { code: "queue_full", retry_after_ms: 4200 };
  assert.match(errorText(error), /again in 5 s/);
  assert.match(errorText(error, 900), /again in 1 s/);
  assert.match(errorText(error, 0), /again now/);
});

test("an unknown error says what the server said", () => {
  assert.equal(errorText({ code: "new_code", message: "Something else." }), "Something else.");
});

test("an end the user did not choose is explained", () => {
  assert.equal(reasonText("max_output_tokens"), "reached the length limit");
  assert.equal(reasonText("repetition"), "began to repeat itself");
  assert.equal(reasonText("eos"), "");
  assert.equal(reasonText(undefined), "");
});

test("a stop differs from an answer that was cut short", () => {
  assert.equal(endText("interrupted", "client_cancelled"), "Stopped");
  assert.equal(endText("interrupted", undefined), "Stopped");
  assert.equal(endText("interrupted", "owner_lost"), "Cut short");
  assert.equal(endText("failed", "engine_error"), "Failed");
  assert.equal(endText("completed", "eos"), "");
});

test("an eviction ends chats and not the page", () => {
  assert.deepEqual(closePolicy(4410, "spam"), { action: "reconnect", isEviction: true });
});

test("keys are random where randomUUID is missing, as on plain http", (t) => {
  t.mock.method(crypto, "randomUUID", undefined);
  Object.defineProperty(crypto, "randomUUID", { value: undefined, configurable: true });
  t.after(() => delete crypto.randomUUID);
  assert.match(newKey(), /^[0-9a-f]{32}$/);
});

test("the text of a message is that of its text parts", () => {
  assert.equal(contentText([{ type: "text", text: "a" }, { type: "image" }, { type: "text", text: "b" }]), "ab");
  assert.equal(contentText(undefined), "");
});

test("a model that cannot be loaded says why, and what to do", () => {
  const error = { code: "model_unavailable", message: "big: it needs 21.0 GB, 16.0 GB are free", retry_after_ms: 1000 };
  assert.match(errorText(error), /cannot be loaded\. big: it needs 21\.0 GB, 16\.0 GB are free\. Choose another one/);
  assert.match(reasonText("model_unavailable"), /could not be loaded/);
});

test("a form that cannot be had says why", () => {
  const error = { code: "output_format_refused", message: "a schema must be an object" };
  assert.match(errorText(error), /cannot be had: a schema must be an object/);
  assert.match(reasonText("output_format_refused"), /cannot be had/);
});

test("a menu says what a model is doing, and nothing of one that is there", () => {
  assert.equal(modelState({ state: "loaded" }), "");
  assert.equal(modelState({}), "");
  assert.equal(modelState({ state: "not_loaded" }), "loaded when you ask");
  assert.equal(modelState({ state: "loading", progress: 0.42 }), "is being loaded, 42 %");
  assert.equal(modelState({ state: "loading" }), "is being loaded");
  assert.equal(modelState({ state: "failed", problem: "it needs 21 GB" }), "it needs 21 GB");
});
