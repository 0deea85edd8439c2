-- From which stream the ledger was written, and how far: whether the bus, or this database, was begun anew or put back
-- from a copy shows when the two are compared. The newest row is the one that holds.
CREATE TABLE llmgw.origin (
    epoch    text PRIMARY KEY, -- names one history of USAGE; later ones sort behind earlier ones
    stream   text NOT NULL, -- when the stream was created
    begun_at timestamptz NOT NULL,
    complete bigint NOT NULL, -- everything of the stream up to this sequence is in the ledger
    reached  bigint NOT NULL, -- the highest sequence that is
    mark     text NOT NULL, -- of the message there
    why      text NOT NULL -- what happened that another history began; empty: it is the first
);
