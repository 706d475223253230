"""Llama and models of its architecture; loads and saves checkpoints in hub layout."""

from vvlen.models.llama.checkpoint import (
    abstract_params,
    check_checkpoint,
    ends_of,
    load_checkpoint,
    read_model,
)
from vvlen.models.llama.checkpoint_hash import fingerprint
from vvlen.models.llama.model import Llama
from vvlen.models.llama.saving import save_checkpoint

__all__ = [
    'Llama', 'abstract_params', 'check_checkpoint', 'ends_of', 'fingerprint',
    'load_checkpoint', 'read_model', 'save_checkpoint',
]
