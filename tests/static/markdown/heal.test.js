import assert from "node:assert/strict";
import { test } from "node:test";

import { heal } from "../../../static/js/markdown/heal.js";

const CASES = [
  ["plain words", "plain words"],
  ["a **bold", "a **bold**"],
  ["a **bold*", "a **bold**"],
  ["a **bold**", "a **bold**"],
  ["an *open", "an *open*"],
  ["**a *b", "**a *b***"],
  ["an _open", "an _open_"],
  ["~~gone", "~~gone~~"],
  ["snake_case_name", "snake_case_name"],
  ["2 * 3 = 6", "2 * 3 = 6"],
  ["a `span", "a `span`"],
  ["a `span` and", "a `span` and"],
  ["stars in `a ** b` stay", "stars in `a ** b` stay"],
  ["see [link", "see link"],
  ["see [link](https://exam", "see link"],
  ["see [link](https://example.org)", "see [link](https://example.org)"],
  ["an image ![gull](ht", "an image gull"],
  ["a word **", "a word "],
  ["a line\n-", "a line"],
  ["a line\n==", "a line"],
  ["```py\nx = [1 ** 2", "```py\nx = [1 ** 2"],
  ["* an item", "* an item"],
  ["- an item with **bold", "- an item with **bold**"],
];

for (const [open, healed] of CASES) {
  test(`${JSON.stringify(open)} becomes ${JSON.stringify(healed)}`, () => {
    assert.equal(heal(open), healed);
  });
}

test("no prefix of a text throws or grows by more than its markers", () => {
  const text = "A **bold _and `code` mixed_ line** with [a link](https://example.org), ~~x~~ ![i](u).";
  for (let length = 0; length <= text.length; length += 1) {
    assert.ok(heal(text.slice(0, length)).length <= length + 8);
  }
});
