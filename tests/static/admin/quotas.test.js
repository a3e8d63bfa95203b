import assert from "node:assert/strict";
import { test } from "node:test";

import { numberOf, quotasOf } from "../../../static/js/admin/manage/quotas.js";

const SHOWN = { tokens_per_day: 5000, sessions: null, answers: 2 };
const FIELDS = { tokens_per_day: 5000, sessions: "", answers: 2 };

test("an empty field is no number, and 0 is one", () => {
  assert.deepEqual(["", " ", "0", "12"].map(numberOf), [null, null, 0, 12]);
});

test("of a new group all fields count", () => {
  const given = { tokens_per_day: "100", sessions: "", answers: "0" };
  assert.deepEqual(quotasOf(given), { tokens_per_day: 100, sessions: null, answers: 0 });
});

test("what another admin has changed meanwhile stays, unless it was changed here, too", () => {
  const now = { tokens_per_day: 9000, sessions: 7, answers: 3 };
  const changed = quotasOf({ ...FIELDS, answers: "" }, SHOWN, now);
  assert.deepEqual(changed, { tokens_per_day: 9000, sessions: 7, answers: null });
  assert.deepEqual(quotasOf(FIELDS, SHOWN, now), now);
});
