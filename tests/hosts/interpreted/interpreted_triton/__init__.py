"""The backend "cpu" of Triton that vLLM's V2 model runner asks for, for Triton's interpreter, which compiles nothing.

This folder on ``PYTHONPATH``, with ``TRITON_INTERPRET=1``, has the runner's kernels run in NumPy.
"""
