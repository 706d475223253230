"""Tasks: pure samplers that draw a batch on the device, and text through Grain."""
