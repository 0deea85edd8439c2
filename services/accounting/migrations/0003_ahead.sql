-- Up to where requests of each gateway were entered, though some before may still be missing: those come again.
-- The watermark follows when nothing is missing any more.
ALTER TABLE llmgw.gateway ADD COLUMN ahead bigint NOT NULL DEFAULT 0;
UPDATE llmgw.gateway SET ahead = watermark;
