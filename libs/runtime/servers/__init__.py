"""The real servers llmgw starts itself on one machine: how they are configured, started, and found ready."""
