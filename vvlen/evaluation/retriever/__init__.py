"""What a trained retriever does at any length (`vvlen.models.retriever`)."""
