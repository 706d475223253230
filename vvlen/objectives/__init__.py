"""Losses that models are trained with."""
