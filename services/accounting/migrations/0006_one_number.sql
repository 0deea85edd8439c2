-- How far the ledger is, the stream knows: every message of USAGE that was acknowledged is in it. One sequence says so
-- for all gateways; what was noted for each of them is not needed any more.
DROP TABLE llmgw.gateway;
