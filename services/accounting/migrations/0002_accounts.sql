-- Sums for every account a request is charged to (its key, project, team and organisation) and for every period
-- a budget may have, made anew from the rows. Periods are of closing, in UTC: 2026-11-29, 2026-W48, 2026-11, total.
DROP TABLE llmgw.spend;

CREATE TABLE llmgw.spend (
    account           text NOT NULL, -- k-…, org/team/project, org/team/*, org/*
    period            text NOT NULL,
    requests          bigint NOT NULL,
    prompt_tokens     bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    cost_micros       bigint NOT NULL,
    PRIMARY KEY (account, period)
);

CREATE FUNCTION llmgw.accounts(key_id text, project text) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT unnest(ARRAY[
        key_id,
        project,
        split_part(project, '/', 1) || '/' || split_part(project, '/', 2) || '/*',
        split_part(project, '/', 1) || '/*'
    ])
$$;

CREATE FUNCTION llmgw.periods(day date) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT unnest(ARRAY[
        to_char(day::timestamp, 'YYYY-MM-DD'),
        to_char(day::timestamp, 'IYYY-"W"IW'),
        to_char(day::timestamp, 'YYYY-MM'),
        'total'
    ])
$$;

INSERT INTO llmgw.spend
SELECT account, period, sum(requests), sum(prompt_tokens), sum(completion_tokens), sum(cost_micros)
FROM (
    SELECT key_id, project, (closed_at AT TIME ZONE 'UTC')::date AS day, count(*) AS requests,
        sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens,
        sum(cost_micros) AS cost_micros
    FROM llmgw.request GROUP BY 1, 2, 3
) AS daily, llmgw.accounts(key_id, project) AS account, llmgw.periods(day) AS period
GROUP BY 1, 2;
