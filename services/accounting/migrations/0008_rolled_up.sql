-- Requests of months that are not kept one by one any more: their sums by the UTC hour in which they closed.
CREATE TABLE llmgw.usage_hour (
    hour              timestamptz NOT NULL,
    key_id            text NOT NULL,
    project           text NOT NULL,
    model             text NOT NULL,
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    cached_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    reasoning_tokens  bigint NOT NULL,
    waited_ms         double precision NOT NULL,
    cost_micros       bigint NOT NULL,
    PRIMARY KEY (hour, key_id, project, model)
);
