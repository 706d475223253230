"""Interventions on the attention output of trained models."""
