import assert from "node:assert/strict";
import { test } from "node:test";

import { briefJson, formatJson } from "../../../static/js/widgets/json.js";

test("JSON is set as JSON.stringify sets it", () => {
  const values = [{}, [], { a: [] }, [{}, [1, "b,{"]], { a: { b: [1, 2] }, c: 'quoted " and \\' }, "text", 7, null];
  for (const value of values) {
    assert.equal(formatJson(JSON.stringify(value)), JSON.stringify(value, null, 2));
    assert.equal(formatJson(JSON.stringify(value, null, "\t")), JSON.stringify(value, null, 2));
  }
});

test("a number is shown as it was written, and no name is lost", () => {
  assert.equal(formatJson('{"a":12345678901234567890,"a":1.0}'), '{\n  "a": 12345678901234567890,\n  "a": 1.0\n}');
});

test("what is no JSON yet, is too long or too deep is not set", () => {
  assert.equal(formatJson('{"a": [1,'), null);
  assert.equal(formatJson(""), null);
  assert.equal(formatJson(`"${"x".repeat(60_000)}"`), null);
  assert.equal(formatJson("[".repeat(2000) + "]".repeat(2000)), null);
});

test("an object is brief in one line, whose long numbers and strange keys stay as they are", () => {
  assert.equal(briefJson('{"city": "Brno",\n "id":12345678901234567890}'), 'city: "Brno", id: 12345678901234567890');
  assert.equal(briefJson('{"a b":{"c":[1,2],"d":"e: \\"f\\": g"}}'), '"a b": {c: [1, 2], d: "e: \\"f\\": g"}');
  assert.equal(briefJson("{}"), "");
});

test("what is no object, or only the beginning of one, is brief as well", () => {
  assert.equal(briefJson('["no",\n"object"]'), '["no", "object"]');
  assert.equal(briefJson('{"city": "Br'), "city: Br");
  assert.equal(briefJson(`{"text":"${"x".repeat(500)}"}`).length, 200);
});
