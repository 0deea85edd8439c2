// Continue's command line, with a model in its settings.

import assert from "node:assert/strict";
import { BASE_URL, KEY, ROOT_URL, SIM, check, ran, told, workplace } from "./checks.mjs";

const ways = { openai: BASE_URL, anthropic: `${ROOT_URL}/v1/` };

async function cn(provider, model, prompt, files = {}) {
  const one = { name: "ours", provider, model, apiBase: ways[provider], apiKey: KEY, capabilities: ["tool_use"] };
  // JSON is YAML.
  const settings = JSON.stringify({ name: "llmgw", version: "0.0.1", schema: "v1", models: [one] });
  const place = await workplace({ "settings.yaml": settings, ...files });
  try {
    const args = ["-p", "--config", "settings.yaml", "--allow", "Bash", prompt];
    return await ran("cn", args, { ...place, env: { CONTINUE_TELEMETRY_ENABLED: "0" } });
  } finally {
    await place.remove();
  }
}

for (const provider of Object.keys(ways)) {
  await check(`${provider}: a command and its output`, [SIM], async (model) => {
    const done = await cn(provider, model, told(["Bash", { command: "cat a.txt" }]), { "a.txt": "seven seas\n" });
    assert.equal(done.status, 0, done.all);
    assert.match(done.out, /seven seas/);
  });
}

await check("openai: several steps", [SIM], async (model) => {
  const steps = ["echo one > b.txt", "echo two >> b.txt", "cat b.txt"].map((command) => ["Bash", { command }]);
  const done = await cn("openai", model, told(...steps));
  assert.match(done.out, /one\ntwo/, done.all);
});

await check("openai: errors end it", [SIM], async () => {
  const unknown = await cn("openai", "gpt-9", "Hi");
  assert.match(unknown.all, /gpt-9/);
});
