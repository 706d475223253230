"""Does LayerNorm after attention help at longer inputs? A family of runs, fixed beforehand."""
