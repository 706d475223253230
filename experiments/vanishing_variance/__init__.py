"""Does LayerNorm after attention help at longer inputs? A predefined set of runs."""
