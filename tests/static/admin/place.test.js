import assert from "node:assert/strict";
import { test } from "node:test";

import { hashOf, placeOf } from "../../../static/js/admin/frame/place.js";

const TABS = ["sessions", "figures"];

test("without a name one is in the first tab", () => {
  assert.deepEqual(placeOf("", TABS), { tab: "sessions", params: {} });
  assert.deepEqual(placeOf("#", TABS), { tab: "sessions", params: {} });
});

test("an address names the same place that it was made of, whatever was searched for", () => {
  const params = { q: "a?b&c=#d <img> 日本", open: "ses_1" };
  assert.deepEqual(placeOf(hashOf("figures", params), TABS), { tab: "figures", params });
});

test("the same place has one address, and what is empty is not in it", () => {
  assert.equal(hashOf("sessions", { b: "2", a: "1", none: "", away: null, off: undefined }), "#sessions?a=1&b=2");
  assert.equal(hashOf("sessions"), "#sessions");
});

test("what is set in a tab that is not there says nothing of the first one", () => {
  assert.deepEqual(placeOf("#users?q=ada", TABS), { tab: "sessions", params: {} });
});
