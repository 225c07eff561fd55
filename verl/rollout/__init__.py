"""Sampling: the engine protocol, the in-process transformers engine, and single-turn collection.

engine = HfEngine(policy, tokenizer)
requests = build_requests(prompts, n=8, sampling=sampling, seed=0, step=3)
trajectories = await collect(engine, requests, tokenizer)
"""
