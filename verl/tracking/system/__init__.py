"""Load, memory, disk, network and GPUs of the machine, sampled beside the training."""
