// opencode, with providers in a project's settings: one of OpenAI's Chat, one of its Responses, one of Anthropic's.

import assert from "node:assert/strict";
import { BASE_URL, SIM, KEY, check, lines, ran, told, workplace } from "./checks.mjs";

const ways = { chat: "@ai-sdk/openai-compatible", anthropic: "@ai-sdk/anthropic" };

async function opencode(way, model, prompt, files = {}) {
  const options = { baseURL: BASE_URL, apiKey: "{env:LLMGW_KEY}" };
  // Without limits it asks for 32,000 tokens of whatever model.
  const models = { [model]: { limit: { context: 32768, output: 4096 } } };
  const settings = {
    model: `llmgw/${model}`,
    small_model: `llmgw/${model}`,
    autoupdate: false,
    share: "disabled",
    provider: { llmgw: { npm: ways[way], options, models } },
  };
  const place = await workplace({ "opencode.json": JSON.stringify(settings), ...files });
  try {
    const done = await ran("opencode", ["run", "--format", "json"], { ...place, env: { LLMGW_KEY: KEY }, input: prompt });
    return { ...done, events: lines(done.out) };
  } finally {
    await place.remove();
  }
}

const of = (done, kind) => done.events.filter((event) => event.type === kind).map((event) => event.part);

for (const way of Object.keys(ways)) {
  await check(`${way}: a command and its output`, [SIM], async (model) => {
    const calls = told(["bash", { command: "cat a.txt", description: "Reads." }]);
    const done = await opencode(way, model, calls, { "a.txt": "seven seas\n" });
    assert.equal(done.status, 0, done.all);
    assert.equal(of(done, "tool_use")[0].state.status, "completed", done.all);
    assert.match(of(done, "text").at(-1).text, /seven seas/);
  });
}

await check("chat: errors end it", [SIM], async () => {
  const unknown = await opencode("chat", "gpt-9", "Hi");
  assert.match(unknown.all, /gpt-9/);
});
