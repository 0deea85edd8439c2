// Codex CLI, with a provider of its own in its settings.

import assert from "node:assert/strict";
import { BASE_URL, KEY, REAL, SIM, SPENT_KEY, THINKS, check, lines, ran, told, workplace } from "./checks.mjs";

const settings = (model) => `model = "${model}"
model_provider = "llmgw"
[model_providers.llmgw]
name = "llmgw"
base_url = "${BASE_URL}"
env_key = "LLMGW_KEY"
`;

async function codex(model, prompt, { key = KEY, files = {} } = {}) {
  const place = await workplace({ ".codex/config.toml": settings(model), ...files });
  try {
    const env = { CODEX_HOME: `${place.work}/.codex`, LLMGW_KEY: key };
    const args = ["exec", "--skip-git-repo-check", "--json", "--sandbox", "danger-full-access", prompt];
    const done = await ran("codex", args, { ...place, env });
    return { ...done, events: lines(done.out) };
  } finally {
    await place.remove();
  }
}

const completed = (done, kind) =>
  done.events.filter((event) => event.type === "item.completed" && event.item.type === kind).map((event) => event.item);

await check("a command and its output", [SIM, THINKS], async (model) => {
  const done = await codex(model, told(["exec_command", { cmd: "cat a.txt" }]), { files: { "a.txt": "seven seas\n" } });
  assert.equal(done.status, 0, done.all);
  assert.match(completed(done, "command_execution")[0].aggregated_output, /seven seas/);
  assert.match(completed(done, "agent_message").at(-1).text, /seven seas/);
  const { usage } = done.events.find((event) => event.type === "turn.completed");
  assert.ok(usage.input_tokens > 1000);
});

await check("several steps", [SIM], async (model) => {
  const steps = ["echo one > b.txt", "echo two >> b.txt", "cat b.txt"].map((cmd) => ["exec_command", { cmd }]);
  const done = await codex(model, told(...steps));
  assert.equal(completed(done, "command_execution").length, 3, done.all);
  assert.match(completed(done, "agent_message").at(-1).text, /one\ntwo/);
});

await check("a tool of a namespace", [SIM], async (model) => {
  const done = await codex(model, told(["multi_agent_v1__close_agent", { target: "nobody" }]));
  assert.equal(done.status, 0, done.all);
  const said = completed(done, "agent_message").at(-1).text;
  assert.match(said, /agent/i);
  assert.doesNotMatch(said, /unsupported|unknown tool/i);
});

await check("errors end it", [SIM], async () => {
  const unknown = await codex("gpt-9", "Hi");
  assert.notEqual(unknown.status, 0);
  assert.match(unknown.all, /gpt-9.*does not exist/);
});

await check("a spent budget ends it", [REAL], async (model) => {
  const spent = await codex(model, "Hi", { key: SPENT_KEY });
  assert.notEqual(spent.status, 0);
  assert.match(spent.all, /budget/);
});
