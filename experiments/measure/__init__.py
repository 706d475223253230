"""Measures a checkpoint beyond its training length."""
