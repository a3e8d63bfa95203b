/**
 * Calls of OpenAI's JavaScript client, as its users write them: node calls.mjs BASE_URL TOKEN
 *
 * Each function is a call and what must come of it; a line of JSON says how each has gone. The model counts: after
 * `t00001` it says `t00002 t00003 `, and so on.
 */

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const { OpenAI } = createRequire(join(process.cwd(), "package.json"))("openai");

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "t00001 " }];
const THREE = "t00002 t00003 t00004 ";

const ask = (more = {}) =>
  client.chat.completions.create({ model, messages, max_tokens: 3, temperature: 0, ...more });

const respond = (more = {}) =>
  client.responses.create({ model, input: "t00001 ", max_output_tokens: 3, temperature: 0, ...more });

const all = async (stream) => {
  const events = [];
  for await (const event of await stream) events.push(event);
  return events;
};

const refused = async (kind, code, more) => {
  const error = await ask(more).then(() => assert.fail("it was not refused"), (error) => error);
  assert.ok(error instanceof kind, `${error}`);
  assert.equal(error.code, code);
  return error;
};

const calls = {
  async models_are_listed() {
    const names = [];
    for await (const found of client.models.list()) names.push(found.id);
    assert.deepEqual(names, [model]);
  },
  async an_answer() {
    const answer = await ask();
    assert.equal(answer.choices[0].message.content, THREE);
    assert.equal(answer.usage.completion_tokens, 3);
  },
  async a_stream() {
    let text = "";
    for await (const chunk of await ask({ stream: true })) text += chunk.choices[0]?.delta.content ?? "";
    assert.equal(text, THREE);
  },
  async a_stream_with_its_usage() {
    const chunks = [];
    for await (const chunk of await ask({ stream: true, stream_options: { include_usage: true } })) chunks.push(chunk);
    assert.equal(chunks.at(-1).usage.completion_tokens, 3);
  },
  async a_stream_that_is_aborted() {
    const stream = await ask({ stream: true, max_tokens: 200 });
    for await (const chunk of stream) {
      assert.ok(chunk);
      stream.controller.abort();
      break;
    }
    assert.equal((await ask()).choices[0].message.content, THREE);
  },
  async a_stream_by_its_helper() {
    const stream = client.chat.completions.stream({ model, messages, max_tokens: 3, temperature: 0 });
    assert.equal(await stream.finalContent(), THREE);
  },
  async several_answers() {
    const answer = await ask({ n: 2 });
    assert.deepEqual(answer.choices.map((choice) => choice.message.content), [THREE, THREE]);
  },
  async logprobs() {
    const { content } = (await ask({ logprobs: true, top_logprobs: 1 })).choices[0].logprobs;
    assert.equal(content.map((token) => token.token).join(""), THREE);
  },
  async a_text_goes_on() {
    const answer = await client.completions.create({ model, prompt: "t00001 ", max_tokens: 3, temperature: 0 });
    assert.equal(answer.choices[0].text, THREE);
  },
  async a_model_that_nobody_serves() {
    await refused(OpenAI.NotFoundError, "model_not_found", { model: "nobody" });
  },
  async a_field_that_nobody_knows() {
    assert.equal((await refused(OpenAI.BadRequestError, "invalid_field", { nonsense: 1 })).param, "nonsense");
  },
  async a_response() {
    const answer = await respond({ metadata: { a: "b" } });
    assert.equal(answer.output_text, THREE);
    assert.equal(answer.status, "incomplete");
    assert.deepEqual((await client.responses.retrieve(answer.id)).output, answer.output);
  },
  async a_response_is_streamed_again_from_any_event() {
    const events = await all(respond({ stream: true }));
    assert.deepEqual(
      events.map((event) => event.sequence_number),
      events.map((_, place) => place),
    );
    const { id } = events[0].response;
    assert.deepEqual(await all(client.responses.retrieve(id, { stream: true, starting_after: 2 })), events.slice(3));
  },
  async a_response_by_its_helper() {
    const stream = client.responses.stream({ model, input: "t00001 ", max_output_tokens: 3, temperature: 0 });
    assert.equal((await stream.finalResponse()).output_text, THREE);
  },
  async a_response_in_the_background_is_stopped() {
    const answer = await respond({ background: true, max_output_tokens: 8000 });
    assert.equal((await client.responses.cancel(answer.id)).status, "cancelled");
  },
  async a_response_follows_another_and_is_removed() {
    const first = await respond();
    const second = await respond({ input: "t00005 ", previous_response_id: first.id });
    const items = [];
    for await (const item of client.responses.inputItems.list(second.id, { order: "asc", limit: 1 })) items.push(item);
    assert.deepEqual(
      items.map((item) => item.role),
      ["user", "assistant", "user"],
    );
    await client.responses.delete(second.id);
    await assert.rejects(client.responses.retrieve(second.id), OpenAI.NotFoundError);
  },
  async a_response_of_which_nothing_is_kept() {
    const answer = await respond({ store: false });
    assert.equal(answer.output_text, THREE);
    await assert.rejects(client.responses.retrieve(answer.id), OpenAI.NotFoundError);
  },
  async a_response_with_a_tool_of_others() {
    await assert.rejects(respond({ tools: [{ type: "web_search" }] }), { status: 400, param: "tools[0].type" });
  },
};

for (const [name, call] of Object.entries(calls)) {
  let problem = "";
  try {
    await call();
  } catch (error) {
    problem = `${error.stack ?? error}`;
  }
  console.log(JSON.stringify({ name, problem }));
}
