"""The outside world: disk, folders and packages weights come from, HTTP."""
