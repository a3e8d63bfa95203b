import assert from "node:assert/strict";
import { test } from "node:test";

import { heal } from "../../../static/js/markdown/heal.js";
import { hasOpenFormula, mathExtensions, withoutFormulas } from "../../../static/js/markdown/math.js";

const [block, inline] = mathExtensions({ growing: false });
const [growingBlock, growingInline] = mathExtensions({ growing: true });

for (const [text, raw, tex, kind] of [
  ["\\(a_b\\) is", "\\(a_b\\)", "a_b", "inline"],
  ["\\[a\\\\b\\] is", "\\[a\\\\b\\]", "a\\\\b", "displayed"],
  ["$$x$$.", "$$x$$", "x", "displayed"],
  ["$x^2$ and", "$x^2$", "x^2", "inline"],
  ["$a\\$b$", "$a\\$b$", "a\\$b", "inline"],
]) {
  test(`${raw} is a formula`, () => {
    const found = inline.tokenizer(text);
    assert.deepEqual([found.raw, found.tex, found.kind], [raw, tex, kind]);
  });
}

for (const text of ["$5 and $6", "$ x$", "$x $", "$x\ny$", "$5", "\\(a", "$$a", "(a)", "[a]"]) {
  test(`${JSON.stringify(text)} is no formula`, () => assert.equal(inline.tokenizer(text), undefined));
}

for (const [text, raw] of [
  ["$$\na\n\nb\n$$\n\nafter", "$$\na\n\nb\n$$\n\n"],
  ["\\[\n\\begin{matrix} a & b \\\\ c & d \\end{matrix}\n\\]\n", "\\[\n\\begin{matrix} a & b \\\\ c & d \\end{matrix}\n\\]\n"],
]) {
  test(`a formula of several lines is one block: ${JSON.stringify(text)}`, () => {
    assert.equal(block.tokenizer(text).raw, raw);
  });
}

test("a formula that ends in the middle of a line is no block", () => {
  assert.equal(block.tokenizer("$$a$$ is a formula"), undefined);
});

test("a formula without its end is open while the text grows, and plain text at the end of it", () => {
  assert.equal(growingInline.tokenizer("\\(a_1 + ").raw, "\\(a_1 + ");
  assert.equal(growingBlock.tokenizer("$$\na\n\nb").raw, "$$\na\n\nb");
  assert.equal(growingInline.tokenizer("$a"), undefined); // a dollar may be money
  assert.equal(block.tokenizer("$$\na\n\nb"), undefined);
});

test("what is drawn is escaped", () => {
  assert.equal(
    inline.renderer(inline.tokenizer("\\(a < b & <img src=x>\\)")),
    '<code class="math-inline">a &lt; b &amp; &lt;img src=x&gt;</code>',
  );
});

test("the emphasis of a text is looked for outside its formulas", () => {
  assert.equal(withoutFormulas("a \\(x_{1}\\) b $y_{2}$ c"), "a  b  c");
  assert.equal(heal("so \\(\\sum_{i}\\) and **bold"), "so \\(\\sum_{i}\\) and **bold**");
  assert.equal(heal("so \\(\\sum_{i} **x"), "so \\(\\sum_{i} **x");
});

test("an open formula differs from a finished one", () => {
  assert.equal(hasOpenFormula("\\(a\\) and \\[b"), true);
  assert.equal(hasOpenFormula("\\(a\\) and \\[b\\]"), false);
  assert.equal(hasOpenFormula("costs $5"), false);
});
