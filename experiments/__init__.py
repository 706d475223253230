"""Runnable experiments; no other code reads a ConfigDict."""
