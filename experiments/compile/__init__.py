"""Compiles the programs of experiments for TPU slices, without a TPU."""
