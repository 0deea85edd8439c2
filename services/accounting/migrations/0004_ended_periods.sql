-- What is said of accounts is asked by period, and the sums of periods that ended long ago are dropped by it.
CREATE INDEX spend_period ON llmgw.spend (period);
