import assert from "node:assert/strict";
import { test } from "node:test";

import { Refused } from "../../../static/js/admin/frame/api.js";

test("what the server will never answer is told apart from what it does not answer now", () => {
  const isFinal = (status) => new Refused(status).isFinal;
  assert.deepEqual([400, 403, 404, 409].map(isFinal), [true, true, true, true]);
  assert.deepEqual([401, 408, 429, 500, 503].map(isFinal), [false, false, false, false, false]);
});
