-- One row per request, partitioned by the UTC month in which it was opened: the one time of a request that
-- every report of it agrees on. The key that makes a request one row stands on each partition (request_id
-- alone): two reports of a request that differ in anything else are still one row.
CREATE TABLE llmgw.request (
    request_id       text NOT NULL,
    opened_at        timestamptz NOT NULL,
    closed_at        timestamptz NOT NULL,
    key_id           text NOT NULL,
    project          text NOT NULL, -- org/team/project at that time
    model_asked      text NOT NULL,
    model            text NOT NULL, -- the one that answered
    protocol         text NOT NULL,
    stream           boolean NOT NULL,
    status           text NOT NULL,
    http_status      integer NOT NULL,
    replica_id       text,
    attempts         integer NOT NULL,
    prompt_tokens    integer NOT NULL,
    cached_tokens    integer NOT NULL, -- counted inside prompt_tokens
    completion_tokens integer NOT NULL,
    reasoning_tokens integer NOT NULL, -- counted inside completion_tokens
    tokens_estimated boolean NOT NULL,
    first_token_ms   double precision,
    duration_ms      double precision NOT NULL,
    price_version    bigint, -- sequence in EVENTS; null: no price was in force
    cost_micros      bigint NOT NULL,
    gateway_id       text NOT NULL
) PARTITION BY RANGE (opened_at);

-- Questions are about when requests closed. Rows arrive nearly in that order, so a block range index does.
CREATE INDEX request_closed_at ON llmgw.request USING brin (closed_at);

-- Up to where in each gateway's spool the ledger holds its requests: the checkpoint, in the rows' transaction.
CREATE TABLE llmgw.gateway (
    gateway_id text PRIMARY KEY,
    watermark  bigint NOT NULL
);

-- Sums of the ledger per key and UTC month of closing, kept in the rows' transaction.
CREATE TABLE llmgw.spend (
    key_id            text NOT NULL,
    period            text NOT NULL, -- 2026-11
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micros       bigint NOT NULL,
    PRIMARY KEY (key_id, period)
);

-- What the guard found, without text. Where the batch stands in USAGE (and when it was stored there, which
-- tells two streams apart) and its place in the batch make a verdict one row: the key of each partition.
CREATE TABLE llmgw.verdict (
    stored_at  timestamptz NOT NULL,
    sequence   bigint NOT NULL,
    place      integer NOT NULL,
    guard_id   text NOT NULL,
    request_id text NOT NULL,
    project    text NOT NULL,
    allow      boolean NOT NULL,
    findings   jsonb NOT NULL,
    elapsed_us integer NOT NULL
) PARTITION BY RANGE (stored_at);
