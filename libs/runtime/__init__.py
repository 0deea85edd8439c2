"""What every service process stands on: settings, secrets, logs, metrics, traces, clock, and its life."""
