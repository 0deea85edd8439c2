// Claude Code, told where to ask by its environment.

import assert from "node:assert/strict";
import { KEY, ROOT_URL, SIM, THINKS, check, lines, ran, told, workplace } from "./checks.mjs";

async function claude(model, prompt, { key = KEY, files = {} } = {}) {
  const place = await workplace(files);
  const env = {
    ANTHROPIC_BASE_URL: ROOT_URL,
    ANTHROPIC_API_KEY: key,
    ANTHROPIC_MODEL: model,
    ANTHROPIC_SMALL_FAST_MODEL: model,
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    DISABLE_AUTOUPDATER: "1",
  };
  try {
    const args = ["-p", "--verbose", "--output-format", "stream-json", "--allowedTools", "Bash Read Write Edit"];
    const done = await ran("claude", args, { ...place, env, input: prompt });
    const events = lines(done.out);
    return { ...done, events, result: events.findLast((event) => event.type === "result") };
  } finally {
    await place.remove();
  }
}

const used = (done) =>
  done.events.flatMap((event) => (event.type === "assistant" ? event.message.content : []))
    .filter((block) => block.type === "tool_use")
    .map((block) => block.name);

// It asks for 32,000 tokens whatever the model: what the prompt leaves of the context is what it gets.
await check("a command and its output", [SIM, THINKS], async (model) => {
  const calls = told(["Bash", { command: "cat a.txt", description: "Reads." }]);
  const done = await claude(model, calls, { files: { "a.txt": "seven seas\n" } });
  assert.equal(done.status, 0, done.all);
  assert.deepEqual(used(done), ["Bash"]);
  assert.equal(done.result.is_error, false);
  assert.match(done.result.result, /seven seas/);
  assert.ok(done.result.usage.input_tokens > 1000);
});

await check("files written, read and changed", [SIM], async (model) => {
  const done = await claude(
    model,
    told(
      ["Bash", { command: "echo one > b.txt", description: "Writes." }],
      ["Bash", { command: "sed -i s/one/two/ b.txt; pwd > here.txt; cat b.txt", description: "Changes." }],
    ),
  );
  assert.equal(done.status, 0, done.all);
  assert.deepEqual(used(done), ["Bash", "Bash"]);
  assert.match(done.result.result, /two/);
});

await check("errors end it", [SIM], async () => {
  const unknown = await claude("claude-9", "Hi");
  assert.match(unknown.result?.result ?? unknown.all, /claude-9/);
  assert.ok(unknown.status !== 0 || unknown.result.is_error);
});
