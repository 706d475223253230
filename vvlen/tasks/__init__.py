"""Synthetic tasks: pure samplers that draw a batch on the device."""
