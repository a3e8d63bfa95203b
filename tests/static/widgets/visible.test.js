import assert from "node:assert/strict";
import { test } from "node:test";

import { visibleName, visibleOutput } from "../../../static/js/widgets/visible.js";

test("what turns letters around or takes no room is written out in a name, and in JSON means the same", () => {
  assert.equal(visibleName("\u202eevil\u202c"), "\\u202eevil\\u202c");
  assert.equal(visibleName("a\u200bb\u00adc\u3164d\u0000e\u2028f"), "a\\u200bb\\u00adc\\u3164d\\u0000e\\u2028f");
  assert.equal(visibleName("\u{e0041}"), "\\udb40\\udc41");
  const given = JSON.stringify({ "to\u202e": "\u2066a\u{e0041}\u200d\ud83d\udcbb", line: "1\n2" }, null, 2);
  assert.deepEqual(JSON.parse(visibleName(given)), JSON.parse(given));
});

test("a name that hides nothing stays as it is", () => {
  for (const name of ["weather", "наша_погода", "الطقس", "天気", "e\u0301", "❤\ufe0f", "a\tb\nc"]) {
    assert.equal(visibleName(name), name);
  }
});

test("an output keeps pictures and scripts whole, and shows what would turn it around", () => {
  for (const text of ["👩\u200d💻", "می\u200cخواهم", "\u200fשלום\u200e", "🏴\u{e0067}\u{e007f}", "a\tb\nc"]) {
    assert.equal(visibleOutput(text), text);
  }
  assert.equal(visibleOutput("a\u202eb\u2066c\u0008d"), "a\\u202eb\\u2066c\\u0008d");
});

test("an output loses the colours of a terminal, and its line ends become ours", () => {
  assert.equal(visibleOutput("\u001b[1;31mred\u001b[0m\u001b[2K ok"), "red ok");
  assert.equal(visibleOutput("\u001b]8;;https://a.example\u0007a link\u001b]8;;\u001b\\."), "a link.");
  assert.equal(visibleOutput("one\r\ntwo\rthree"), "one\ntwo\nthree");
  assert.equal(visibleOutput("\u001b(B"), "\\u001b(B");
});
