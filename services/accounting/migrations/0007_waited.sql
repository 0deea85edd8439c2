-- Of a request's duration, before there was an engine to ask: a model on demand was started. Null: not kept then.
ALTER TABLE llmgw.request ADD COLUMN waited_ms double precision;
