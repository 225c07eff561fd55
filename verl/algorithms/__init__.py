"""Pure functions over tensors: advantages, losses, KL and their statistics.

    masking       sums and means in which masked positions influence nothing
    advantages    gae, grpo, and the token rewards and whitening around them
    losses        policy loss, value loss, entropy, per token
    aggregation   token losses to one number, exact over micro-batches and ranks
    kl            estimators, exact KL, reward penalty, controllers
    statistics    moments that merge exactly, explained variance

Names end in their shape: B trajectories, T response tokens, V vocabulary, G groups. Masks are 1 (or
True) where the policy produced the token and it is trainable. How a recipe puts the functions
together is on its page in `docs/algorithms`.
"""
