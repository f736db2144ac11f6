"""Watching a pass: everything here stands on the op table, and the core imports none of it."""
