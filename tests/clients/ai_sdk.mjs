// Vercel AI SDK: its providers for OpenAI (chat and responses), for what is compatible with OpenAI, and for Anthropic.

import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { BASE_URL, CITIES, KEY, REAL, REAL_EMBEDDINGS, SIM, THINKS, all, check } from "./checks.mjs";

const openai = createOpenAI({ baseURL: BASE_URL, apiKey: KEY });
const compatible = createOpenAICompatible({
  name: "llmgw",
  baseURL: BASE_URL,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: BASE_URL, apiKey: KEY });

const ways = {
  "openai chat": (model) => openai.chat(model),
  "openai responses": (model) => openai.responses(model),
  compatible: (model) => compatible(model),
  anthropic: (model) => anthropic(model),
};
// Answers are not stored here: with `store: false` the SDK sends what was said, and not a reference to it.
const quiet = { maxRetries: 0, providerOptions: { openai: { store: false } } };
const Place = z.object({ city: z.string(), people: z.number().int() });

for (const [way, of] of Object.entries(ways)) {
  await check(`${way}: text`, [REAL, SIM], async (model) => {
    const asked = { model: of(model), prompt: "Say hello.", maxOutputTokens: 8, ...quiet };
    const answer = await generateText(asked);
    assert.ok(answer.text);
    assert.ok(answer.usage.outputTokens > 0);
  });

  await check(`${way}: text streamed`, [REAL, SIM], async (model) => {
    const asked = { model: of(model), prompt: "Say hello.", maxOutputTokens: 8, ...quiet };
    const streamed = streamText(asked);
    const parts = await all(streamed.textStream);
    assert.ok(parts.join(""));
    assert.ok((await streamed.usage).outputTokens > 0);
    assert.ok(await streamed.finishReason);
  });

  await check(`${way}: tools over steps, parallel, streamed and not`, [SIM], async (model) => {
    for (const start of [(asked) => generateText(asked), (asked) => streamText(asked)]) {
      const cities = [];
      const weather = tool({
        description: "The weather.",
        inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => {
          cities.push(city);
          return `fine in ${city}`;
        },
      });
      const asked = { model: of(model), prompt: CITIES, tools: { weather }, stopWhen: stepCountIs(4), ...quiet };
      const answer = await start(asked);
      assert.ok(await answer.text);
      assert.equal((await answer.steps).length, 2);
      assert.deepEqual(cities, ["Paris", "Rome"]);
    }
  });

  await check(`${way}: object of a schema`, [REAL, SIM], async (model) => {
    const output = Output.object({ schema: Place });
    // For a name it does not know, the provider for Anthropic asks through a tool; the real model calls none.
    const structuredOutputMode = model === REAL ? "outputFormat" : "auto";
    const providerOptions = { ...quiet.providerOptions, anthropic: { structuredOutputMode } };
    const limits = { maxOutputTokens: 200, temperature: 0 };
    const asked = { model: of(model), prompt: "Say hello.", output, ...limits, ...quiet, providerOptions };
    const answer = await generateText(asked);
    assert.equal(typeof answer.output.city, "string");
  });

  await check(`${way}: thinking`, [THINKS], async (model) => {
    const providerOptions = {
      anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } },
      openai: way === "openai responses" ? { store: false, reasoningSummary: "auto", forceReasoning: true } : {},
    };
    const asked = { model: of(model), prompt: "Say hello.", maxOutputTokens: 100, ...quiet, providerOptions };
    const answer = streamText(asked);
    const kinds = (await all(answer.fullStream)).map((part) => part.type);
    assert.ok(kinds.includes("text-delta"));
    // OpenAI's chat has no thoughts in it, and its provider looks for none.
    if (way !== "openai chat") assert.ok(await answer.reasoningText);
  });

  await check(`${way}: errors`, [REAL], async () => {
    const wrong = await generateText({ model: of("gpt-9"), prompt: "x", ...quiet }).catch((error) => error);
    assert.ok(APICallError.isInstance(wrong), String(wrong));
    assert.equal(wrong.statusCode, 404);
    assert.match(wrong.message, /gpt-9/);
  });
}

for (const [way, of] of [
  ["openai", (model) => openai.embedding(model)],
  ["compatible", (model) => compatible.embeddingModel(model)],
]) {
  await check(`${way}: embeddings`, [REAL_EMBEDDINGS, SIM], async (model) => {
    const { embeddings, usage } = await embedMany({ model: of(model), values: ["one two", "three"], ...quiet });
    assert.equal(embeddings.length, 2);
    assert.ok(embeddings[0].length > 4);
    assert.ok(usage.tokens > 0);
  });
}
