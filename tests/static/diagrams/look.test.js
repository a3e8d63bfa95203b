import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { half, look, mixed } from "../../../static/js/diagrams/look.js";

const COLORS = readFileSync(new URL("../../../static/css/colors.css", import.meta.url), "utf8");

function pageWith(css) {
  globalThis.document = { documentElement: {}, body: {} };
  globalThis.getComputedStyle = () => ({
    fontFamily: "a font",
    getPropertyValue: (name) => new RegExp(`${name}: ([^;]+);`).exec(css)?.[1] ?? "",
  });
}

test("a colour is the light or the dark half of its pair", () => {
  assert.equal(half(" light-dark(#aabbcc, #112233)", false), "#aabbcc");
  assert.equal(half(" light-dark(#aabbcc, #112233)", true), "#112233");
});

test("a share of a colour and the rest of the ground", () => {
  assert.equal(mixed("#ff0000", "#0000ff", 1), "#ff0000");
  assert.equal(mixed("#ff0000", "#0000ff", 0), "#0000ff");
  assert.equal(mixed("#ff8000", "#000000", 0.5), "#804000");
});

for (const dark of [false, true]) {
  test(`each colour of a ${dark ? "dark" : "light"} diagram is one of the page's`, () => {
    pageWith(COLORS);
    const { themeVariables, fontFamily } = look(dark);
    assert.equal(fontFamily, "a font");
    assert.equal(themeVariables.textColor, dark ? "#e3e8e8" : "#1a2326");
    assert.ok(!JSON.stringify(themeVariables).includes("#808080"), "a name that colors.css does not have");
    assert.notEqual(themeVariables.pie1, themeVariables.pie2);
    assert.equal(themeVariables.pie1, themeVariables.pie7);
  });
}
