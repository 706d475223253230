"""Does LayerNorm after attention help at longer inputs? A family, fixed beforehand."""
