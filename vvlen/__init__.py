"""vvlen: why do transformers fail on inputs longer than those they were trained on?"""

__version__ = '0.1.0'
