"""Tasks: pure samplers that draw a batch on the device; text by Grain; prompts."""
