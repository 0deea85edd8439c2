// openai-node.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { ASKS, BASE_URL, CITIES, CITY, HI, KEY, REAL, REAL_EMBEDDINGS, SIM, THINKS } from "./checks.mjs";
import { SPENT_KEY, all, check, counting, throws } from "./checks.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0, timeout: 60_000 });
const tools = [{ type: "function", function: { name: "weather", parameters: CITY, strict: true } }];
const functions = [{ type: "function", name: "weather", parameters: CITY, strict: true }];
const Place = z.object({ city: z.string(), people: z.number().int() });
const cities = [{ city: "Paris" }, { city: "Rome" }];

await check("models", [REAL, SIM], async (model) => {
  const names = (await all(client.models.list())).map((one) => one.id);
  assert.ok(names.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
});

await check("chat", [REAL, SIM], async (model) => {
  const answer = await client.chat.completions.create({ model, messages: HI, max_tokens: 8 });
  assert.ok(answer.choices[0].message.content);
  assert.ok(answer.usage.completion_tokens > 0);
  assert.ok(answer._request_id);
});

await check("chat streamed", [REAL, SIM], async (model) => {
  const asked = { model, messages: HI, max_tokens: 8, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  const told = { include_usage: true };
  const chunks = await all(await client.chat.completions.create({ ...asked, stream: true, stream_options: told }));
  const text = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(chunks.at(-1).usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(await client.chat.completions.stream(asked).finalContent(), text);
});

await check("completions", [REAL, SIM], async (model) => {
  const asked = { model, prompt: "The sea is", max_tokens: 8, temperature: 0 };
  const whole = (await client.completions.create(asked)).choices[0].text;
  const chunks = await all(await client.completions.create({ ...asked, stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0]?.text ?? "").join(""), whole);
});

await check("tools", [SIM], async (model) => {
  const messages = [{ role: "user", content: "Weather in 'Paris'?" }];
  const { message } = (await client.chat.completions.create({ model, messages, tools })).choices[0];
  const [call] = message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Paris" });
  messages.push(message, { role: "tool", tool_call_id: call.id, content: "18 degrees" });
  const again = await client.chat.completions.create({ model, messages, tools });
  assert.equal(again.choices[0].finish_reason, "stop");
});

await check("parallel tools, streamed", [SIM], async (model) => {
  const final = await client.chat.completions.stream({ model, messages: ASKS, tools }).finalChatCompletion();
  const calls = final.choices[0].message.tool_calls;
  assert.deepEqual(calls.map((call) => JSON.parse(call.function.arguments)), cities);
  assert.equal(new Set(calls.map((call) => call.id)).size, 2);
});

await check("tool runner", [SIM], async (model) => {
  const asked = [];
  const weather = {
    type: "function",
    function: {
      ...tools[0].function,
      parse: JSON.parse,
      function: ({ city }) => {
        asked.push(city);
        return `fine in ${city}`;
      },
    },
  };
  const runner = client.chat.completions.runTools({ model, messages: ASKS, tools: [weather], stream: true });
  assert.ok(await runner.finalContent());
  assert.deepEqual(asked, ["Paris", "Rome"]);
});

await check("json_schema", [REAL, SIM], async (model) => {
  const asked = { model, messages: HI, max_tokens: 200, temperature: 0 };
  const answer = await client.chat.completions.parse({ ...asked, response_format: zodResponseFormat(Place, "place") });
  assert.equal(typeof answer.choices[0].message.parsed.city, "string");
});

await check("embeddings: base64, float", [REAL_EMBEDDINGS, SIM], async (model) => {
  const input = ["one two", "three"];
  const packed = await client.embeddings.create({ model, input });
  const plain = await client.embeddings.create({ model, input, encoding_format: "float" });
  packed.data.forEach((one, i) => {
    assert.equal(one.embedding.length, plain.data[i].embedding.length);
    one.embedding.forEach((x, j) => assert.ok(Math.abs(x - plain.data[i].embedding[j]) < 1e-6));
  });
  const raw = await client.embeddings.create({ model, input, encoding_format: "base64" });
  assert.equal(typeof raw.data[0].embedding, "string");
});

await check("embeddings: dimensions", [REAL_EMBEDDINGS, SIM], async (model) => {
  const short = await client.embeddings.create({ model, input: "one two", dimensions: 8 });
  assert.equal(short.data[0].embedding.length, 8);
});

await check("responses", [REAL, SIM], async (model) => {
  const asked = { model, input: "Say hello.", max_output_tokens: 8, temperature: 0 };
  const whole = await client.responses.create(asked);
  assert.ok(whole.output_text);
  const events = await all(await client.responses.create({ ...asked, stream: true }));
  assert.equal(events[0].type, "response.created");
  const text = events.filter((one) => one.type === "response.output_text.delta").map((one) => one.delta);
  assert.equal(text.join(""), whole.output_text);
  const final = await client.responses.stream(asked).finalResponse();
  assert.equal(final.output_text, whole.output_text);
});

await check("responses: tools, thinking, streamed", [THINKS], async (model) => {
  const asked = { model, tools: functions, reasoning: { summary: "auto" } };
  const final = await client.responses.stream({ ...asked, input: CITIES }).finalResponse();
  const kinds = final.output.map((item) => item.type);
  assert.deepEqual(kinds, ["reasoning", "message", "function_call", "function_call"]);
  const calls = final.output.filter((item) => item.type === "function_call");
  assert.deepEqual(calls.map((call) => JSON.parse(call.arguments)), cities);
  const results = calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output: "18" }));
  const again = await client.responses.create({ ...asked, input: [...ASKS, ...final.output, ...results] });
  assert.ok(again.output_text);
});

await check("responses: json_schema", [REAL, SIM], async (model) => {
  const asked = { model, input: "Say hello.", max_output_tokens: 200, temperature: 0 };
  const answer = await client.responses.parse({ ...asked, text: { format: zodTextFormat(Place, "place") } });
  assert.equal(typeof answer.output_parsed.city, "string");
});

await check("errors have their types", [REAL, SIM], async (model) => {
  const create = (fields) => () => client.chat.completions.create({ model, messages: HI, ...fields });
  const wrong = client.withOptions({ apiKey: "sk-wrong" });
  await throws(OpenAI.AuthenticationError, () => wrong.chat.completions.create({ model, messages: HI }));
  const unknown = await throws(OpenAI.NotFoundError, create({ model: "gpt-9" }));
  assert.equal(unknown.code, "model_not_found");
  assert.ok(unknown.requestID);
  const bad = await throws(OpenAI.BadRequestError, create({ messages: "no" }));
  assert.equal(bad.param, "messages");
});

await check("errors of an engine", [SIM], async (model) => {
  const asked = (sim) => client.chat.completions.create({ model, messages: HI, stream: true, sim });
  await throws(OpenAI.APIError, async () => all(await asked({ cut_after: 2 })));
  await throws(OpenAI.InternalServerError, () => asked({ fail_status: 500 }));
});

await check("a spent budget is asked once", [REAL], async (model) => {
  const counted = counting();
  const spent = new OpenAI({ baseURL: BASE_URL, apiKey: SPENT_KEY, maxRetries: 9, timeout: 60_000, fetch: counted });
  for (const stream of [false, true]) {
    const refused = await throws(OpenAI.APIError, () => spent.chat.completions.create({ model, messages: HI, stream }));
    assert.equal(refused.status, 402);
    assert.equal(refused.code, "budget_exceeded");
  }
  await throws(OpenAI.APIError, () => spent.responses.create({ model, input: "Hello." }));
  assert.equal(counted.requests, 3);
});
