"""The block and what surrounds it, as plain PyTorch modules."""
