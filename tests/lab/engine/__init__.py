"""The stand-in engine as wheels: named like the real ones, installed by the same lock and the same uv.

``build_standin_wheelhouse("0.33.0")`` writes ``vllm`` (this folder's `vllm` package, with the flags that the
catalogue knows for that version) and an empty ``torch`` that reports the right CUDA, and locks both by hash.
"""
