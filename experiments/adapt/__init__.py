"""What helps a trained model to read longer inputs."""
