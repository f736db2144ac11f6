"""Backends: where arrays live and which library computes on them."""
