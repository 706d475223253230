"""Runnable experiments; only they read a ConfigDict."""
