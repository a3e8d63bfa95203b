import assert from "node:assert/strict";
import { test } from "node:test";

import { harmless, openDetails } from "../../../static/js/markdown/inline-html.js";

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

for (const [html, safe] of [
  ["H<sub>2</sub>O", "H<sub>2</sub>O"],
  ["a<BR/>b", "a<br/>b"],
  ["<kbd>Ctrl</kbd>", "<kbd>Ctrl</kbd>"],
  ["<!-- a comment -->", ""],
  ["<sub onclick=x>2", "&lt;sub onclick=x&gt;2"],
  ["<details open>", "&lt;details open&gt;"],
  ["<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"],
  ["<img src=x onerror=alert(1)>", "&lt;img src=x onerror=alert(1)&gt;"],
  ["<sub<script>>", "&lt;sub&lt;script&gt;&gt;"],
  ["<!-- <sub> --><u>", "<u>"],
  ["a < b & c", "a &lt; b &amp; c"],
]) {
  test(`${html} becomes ${safe || "nothing"}`, () => assert.equal(harmless(html, escape), safe));
}

test("what is open is counted over blocks", () => {
  assert.equal(openDetails("<details>\n<summary>a</summary>\n"), 1);
  assert.equal(openDetails("text\n</details>\n", 1), 0);
  assert.equal(openDetails("</details>\n", 0), 0);
});
