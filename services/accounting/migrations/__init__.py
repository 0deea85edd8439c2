"""The schema, step by step. A file that was released is never edited; what changes is the next number."""
