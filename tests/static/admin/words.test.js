import assert from "node:assert/strict";
import { test } from "node:test";

import { titleText } from "../../../static/js/admin/frame/words.js";

test("a title that nobody can see is said to be none, and what hides in one is written out", () => {
  for (const blank of ["", "  ", "\u00a0\u3000", "\u2800", "\ufe0f \u034f"]) assert.equal(titleText(blank), "Untitled");
  assert.equal(titleText("\u200b"), "\\u200b");
  assert.equal(titleText("\u202esediT"), "\\u202esediT");
  assert.equal(titleText("Tides <b>"), "Tides <b>");
});

test("a title that an admin may not read is told apart from one that is not there", () => {
  assert.equal(titleText(null), "Title hidden");
});
