// anthropic-node.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { ASKS, CITY, HI, KEY, REAL, ROOT_URL, SIM, SPENT_KEY, THINKS } from "./checks.mjs";
import { all, check, counting, throws } from "./checks.mjs";

const client = new Anthropic({ baseURL: ROOT_URL, apiKey: KEY, maxRetries: 0, timeout: 60_000 });
const tools = [{ name: "weather", description: "The weather.", input_schema: CITY }];
const cities = [{ city: "Paris" }, { city: "Rome" }];
const textOf = (message) => message.content.map((block) => (block.type === "text" ? block.text : "")).join("");
const callsOf = (message) => message.content.filter((block) => block.type === "tool_use");

await check("models", [REAL, SIM], async (model) => {
  assert.ok((await all(client.models.list())).map((one) => one.id).includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
});

await check("messages", [REAL, SIM], async (model) => {
  const system = [{ type: "text", text: "Be brief.", cache_control: { type: "ephemeral" } }];
  const answer = await client.messages.create({ model, max_tokens: 8, messages: HI, system });
  assert.ok(answer.id.startsWith("msg_"));
  assert.ok(textOf(answer));
  assert.ok(answer.usage.output_tokens > 0);
});

await check("messages streamed, by helper and as events", [REAL, SIM], async (model) => {
  const asked = { model, max_tokens: 8, messages: HI, temperature: 0 };
  const texts = [];
  const final = await client.messages.stream(asked).on("text", (text) => texts.push(text)).finalMessage();
  assert.equal(texts.join(""), textOf(final));
  const events = (await all(await client.messages.create({ ...asked, stream: true }))).map((event) => event.type);
  assert.equal(events[0], "message_start");
  assert.equal(events.at(-1), "message_stop");
  assert.equal(textOf(await client.messages.create(asked)), textOf(final));
});

await check("tools", [SIM], async (model) => {
  const messages = [{ role: "user", content: "Weather in 'Paris'?" }];
  const called = await client.messages.create({ model, max_tokens: 100, messages, tools });
  assert.equal(called.stop_reason, "tool_use");
  const [call] = callsOf(called);
  assert.deepEqual(call.input, { city: "Paris" });
  const result = { type: "tool_result", tool_use_id: call.id, content: "18 degrees" };
  messages.push({ role: "assistant", content: called.content }, { role: "user", content: [result] });
  assert.ok(textOf(await client.messages.create({ model, max_tokens: 100, messages, tools })));
});

await check("parallel tools, streamed", [SIM], async (model) => {
  const final = await client.messages.stream({ model, max_tokens: 100, messages: ASKS, tools }).finalMessage();
  assert.deepEqual(callsOf(final).map((call) => call.input), cities);
});

await check("tool runner", [SIM], async (model) => {
  const asked = [];
  const run = ({ city }) => {
    asked.push(city);
    return `fine in ${city}`;
  };
  const weather = { ...tools[0], type: "custom", parse: (input) => input, run };
  const runner = client.beta.messages.toolRunner({ model, max_tokens: 100, messages: ASKS, tools: [weather] });
  assert.ok(textOf(await runner.runUntilDone()));
  assert.deepEqual(asked, ["Paris", "Rome"]);
});

await check("thinking", [THINKS], async (model) => {
  const asked = { model, max_tokens: 2048, tools, thinking: { type: "enabled", budget_tokens: 1024 } };
  const thoughts = [];
  const stream = client.messages.stream({ ...asked, messages: ASKS }).on("thinking", (part) => thoughts.push(part));
  const final = await stream.finalMessage();
  assert.deepEqual(final.content.map((block) => block.type), ["thinking", "text", "tool_use", "tool_use"]);
  assert.equal(thoughts.join(""), final.content[0].thinking);
  const results = callsOf(final).map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: "18" }));
  const turns = [{ role: "assistant", content: final.content }, { role: "user", content: results }];
  assert.ok(textOf(await client.messages.create({ ...asked, messages: [...ASKS, ...turns] })));
});

await check("count_tokens", [REAL, SIM], async (model) => {
  const counted = await client.messages.countTokens({ model, messages: HI, system: "Be brief." });
  const answer = await client.messages.create({ model, max_tokens: 1, messages: HI, system: "Be brief." });
  assert.equal(counted.input_tokens, answer.usage.input_tokens + (answer.usage.cache_read_input_tokens ?? 0));
});

await check("errors have their types", [REAL, SIM], async (model) => {
  const create = (fields) => () => client.messages.create({ model, max_tokens: 1, messages: HI, ...fields });
  const wrong = client.withOptions({ apiKey: "sk-wrong" });
  await throws(Anthropic.AuthenticationError, () => wrong.messages.create({ model, max_tokens: 1, messages: HI }));
  const unknown = await throws(Anthropic.NotFoundError, create({ model: "claude-9" }));
  assert.ok(unknown.requestID);
  assert.equal(unknown.error.error.type, "not_found_error");
  const web = [{ type: "web_search_20250305", name: "web_search" }];
  assert.match((await throws(Anthropic.BadRequestError, create({ tools: web }))).message, /tools\.0\.type/);
});

await check("errors of an engine", [SIM], async (model) => {
  const asked = { model, max_tokens: 9, messages: HI };
  await throws(Anthropic.APIError, () => client.messages.stream({ ...asked, sim: { cut_after: 2 } }).finalMessage());
  const refused = await client.messages.create({ ...asked, sim: { refuse: true } });
  assert.equal(refused.stop_reason, "refusal");
});

await check("a spent budget is asked once", [REAL], async (model) => {
  const counted = counting();
  const spent = new Anthropic({ baseURL: ROOT_URL, apiKey: SPENT_KEY, maxRetries: 9, timeout: 60_000, fetch: counted });
  for (const stream of [false, true]) {
    const asked = { model, max_tokens: 9, messages: HI, stream };
    const refused = await throws(Anthropic.APIError, () => spent.messages.create(asked));
    assert.equal(refused.status, 402);
    assert.equal(refused.error.error.type, "billing_error");
  }
  assert.equal(counted.requests, 2);
});
