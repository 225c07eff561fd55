"""Models: loading, log-probs, values, reward scores, LoRA and export.

    tokenizer = load_tokenizer(path)
    policy = load_policy(config.actor_rollout_ref.model, device, tokenizer=tokenizer)
    batch = pad_batch(trajectories, device)
    out = token_logprobs(policy, batch, temperature=1.0)      # out.logprobs_BT, out.entropy_BT

Shapes: B trajectories, L prompt + response, T response, N selected tokens, H hidden, V vocabulary.
"""
