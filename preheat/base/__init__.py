"""The ground floor: errors, events, options and digests. Knows no torch, no frames, no files."""
