"""Measurements of a trained retriever (`vvlen.models.retriever`) at any length."""
